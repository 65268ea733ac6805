"""The last records of a stage of a pipeline, from the newest files of the spool, and what the ledger says of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from conduit_tasks.errors import ConfigError
from conduit_tasks.ledger.entry import scattered
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import open_spool
from conduit_tasks.micro_batch.pass_plan import NACKED_SCHEMA
from conduit_tasks.operate.stages import Stage, newest, stage_of
from conduit_tasks.operate.trying import Entry, entry_of, entry_of_letter
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.record.shown import Shown
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.tail import Budget, last_rows
from conduit_tasks.topology import Node, Pipeline

MOST = 100
"""Records that are shown at a time, at most."""
MICRO_BATCHES = 20
"""Newest micro-batches that are looked at."""
BYTES = 128 << 20
"""Bytes of rows that are read at a time, before compression; one row group is read whatever its size."""
ROWS = 500
"""Rows of the ledger that are looked at for the answers of one micro-batch."""
ANSWER = ("outcome", "status", "error_class", "error", "sends", "attempt", "run")
"""Columns of the ledger that an answer has."""
PROCESSORS = Node("processors")


@dataclass(frozen=True)
class Place:
    """Place of a record in the spool: the stage's node, and the record's numbers there."""

    node: Node
    micro_batch: int
    slice: int
    n: int
    ord: int

    def __str__(self) -> str:
        return f"{self.node}/{self.micro_batch}/{self.slice}/{self.n}/{self.ord}"

    @classmethod
    def read(cls, text: str) -> Place:
        """Reads what `str` gives. Raises ConfigError."""
        node, *numbers = text.split("/")
        if len(numbers) != 4 or not all(each.isdecimal() and len(each) < 19 for each in numbers):
            raise ConfigError(f"'{text[:80]}' is no place in the spool: `conduit records peek` prints places")
        m, s, n, o = map(int, numbers)
        return cls(Node(node), m, s, n, o)


@dataclass(frozen=True)
class Found:
    """One row of a stage. `error`: node, class and message, if it failed there."""

    place: Place
    record: Record
    error: dict[str, str] | None = None


def peek(
    pipeline: Pipeline,
    node: str = PROCESSORS,
    last: int = 20,
    made: Callable[[Found, Shown], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Returns the last records of a stage (see `stages`), newest micro-batch first and the last record of each first;
    `node/processor`: those that came to a processor after the stage.

    `records`: each with its `place`, `micro_batch`, `seq` (None: not sealed yet), `id`, `state` (passed or nacked; at a
    destination what the ledger says: acked, nacked, open, confirmed, or None: nothing yet), the `record` as it is
    shown, `error` and `answer`, and what `made` (`stage_steps`) says of it: `steps`, None if it is not given, and
    `sent`. `more`: whether older ones may be in the spool. Raises ConfigError if there is no such node, SpoolError.
    """
    nodes, processor = staged(pipeline, node)
    spool, shown, budget = open_spool(pipeline), Shown(pipeline.mask), Budget(BYTES)
    wanted = min(last, MOST)
    seen: list[tuple[Stage, Found, dict[str, Any] | None]] = []
    looked = 0
    for each_node in nodes:
        looks, found = _newest(spool, pipeline, each_node, wanted, budget)
        looked = max(looked, looks)
        seen += found
    if processor:
        # What failed before never came to it.
        seen = [each for each in seen if each[1].error is None]
        seen.sort(key=_place, reverse=True)
    seen = seen[:wanted]
    # An answer, or a field, may repeat what another record has.
    for _, each, _ in seen:
        shown.learn(each.record.to_opencdc())
    passed = None if nodes[0].kind == "destinations" else "passed"
    out = [_entry(stage, each, shown, answer, passed=passed) for stage, each, answer in seen]
    for n, (_, each, _) in enumerate(seen):
        out[n] |= {"steps": None, "sent": None} if made is None else made(each, shown)
    if processor and made is not None:
        out = [each for each in out if any(step["processor"] == processor for step in each["steps"])]
    return {
        "pipeline": pipeline.id,
        "node": f"{node or PROCESSORS}",
        "records": out,
        "looked": looked,
        "more": len(seen) >= wanted or budget.spent or looked == MICRO_BATCHES,
        "cut": shown.cut,
    }


def staged(pipeline: Pipeline, node: str) -> tuple[list[Node], str]:
    """Returns the stages of which the spool has what a stage shows, and the id of the processor after them that it is
    about; "": it is about none. Raises ConfigError."""
    whole, _, processor = node.partition("/")
    found = _node(pipeline, whole)
    if not processor:
        return [found], ""
    if found.kind == "sources":
        raise ConfigError(
            f"what {found} read is kept as its own processors made it, so no step of them is known: look at {found}"
        )
    section = pipeline.processors if found == PROCESSORS else pipeline.destination(found.id).processors
    if processor not in [each.id for each in section]:
        known = ", ".join(f"{found}/{each.id}" for each in section) or "none"
        raise ConfigError(f"pipeline {pipeline.id} has no processor {node[:80]}; those of {found} are: {known}")
    return [source.node for source in pipeline.sources] if found == PROCESSORS else [found], processor


def _newest(
    spool: Spool, pipeline: Pipeline, node: Node, wanted: int, budget: Budget
) -> tuple[int, list[tuple[Stage, Found, dict[str, Any] | None]]]:
    """Returns how many micro-batches were looked at, and the last rows of a stage with their answers."""
    seen: list[tuple[Stage, Found, dict[str, Any] | None]] = []
    looked = 0
    for stage in newest(spool, pipeline, node, MICRO_BATCHES):
        looked += 1
        found = _last(spool, stage, node, wanted - len(seen), budget)
        answers = _Answers(spool, pipeline, stage, node.id) if node.kind == "destinations" else None
        seen += [(stage, each, answers.of(_seq(stage, each)) if answers else None) for each in found]
        if len(seen) >= wanted or budget.spent:
            break
    return looked, seen


def _place(seen: tuple[Stage, Found, Any]) -> tuple[int, ...]:
    place = seen[1].place
    return place.micro_batch, place.slice, place.n, place.ord


def _node(pipeline: Pipeline, node: str) -> Node:
    return entry_of(pipeline, node or PROCESSORS).node


def _seq(stage: Stage, found: Found) -> int | None:
    return None if stage.sealed is None else stage.sealed.bases[found.place.slice] + found.place.n


def _entry(
    stage: Stage, found: Found, shown: Shown, answer: dict[str, Any] | None, *, passed: str | None
) -> dict[str, Any]:
    place = found.place
    record = shown.record(found.record.to_opencdc())
    error = found.error and {**found.error, "message": shown.text(found.error["message"])}
    if answer is not None and answer["error"]:
        answer["error"] = shown.text(answer["error"])
    return {
        "place": str(place),
        "micro_batch": place.micro_batch,
        "seq": _seq(stage, found),
        "id": found.record.id,
        "state": "nacked" if error else answer["outcome"] if answer else passed,
        "record": record,
        "error": error,
        "answer": answer,
    }


def _last(spool: Spool, stage: Stage, node: Node, count: int, budget: Budget) -> list[Found]:
    """Returns the last rows of a stage, the last first: of those that went on, and of those that failed."""
    found: list[Found] = []
    for file in reversed(stage.files):
        if len(found) < count and not budget.spent:
            found += _read(spool, stage, node, file=file, count=count - len(found), budget=budget)
    failed: list[Found] = []
    for file in reversed(stage.nacked_files):
        if len(failed) < count and not budget.spent:
            own = _read(spool, stage, node, file=file, count=count - len(failed), budget=budget, nacked=True)
            failed += [each for each in own if each.error and each.error["node"].partition("/")[0] == node]
    found += failed
    found.sort(key=lambda each: (each.place.slice, each.place.n, each.place.ord), reverse=True)
    return found[:count]


def _read(
    spool: Spool, stage: Stage, node: Node, *, file: PartFile, count: int, budget: Budget, nacked: bool = False
) -> list[Found]:
    names = NACKED_SCHEMA.names if nacked else SPOOL_SCHEMA.names
    row_filter = None if nacked else stage.row_filter
    out: list[Found] = []
    for batch in last_rows(spool, file, count, columns=names, budget=budget, row_filter=row_filter):
        numbers = zip(*(batch.column(name).to_pylist() for name in ("slice", "n", "ord")))
        errors = [orjson.loads(each) for each in batch.column("error").to_pylist()] if nacked else [None] * len(batch)
        for (s, n, o), record, error in zip(numbers, to_records(batch, stage.origins), errors):
            out.append(Found(Place(node, stage.micro_batch, s, n, o), record, error))
    return out[::-1]


class _Answers:
    """Ledger entries of one micro-batch at one destination."""

    def __init__(self, spool: Spool, pipeline: Pipeline, stage: Stage, destination: str) -> None:
        assert stage.sealed is not None
        # No attempt ends before the seal; machines' clocks may differ by some minutes.
        since = stage.sealed.sealed_at - 600
        table, _ = Ledger(spool, pipeline.id).newest(ROWS, destination, since, stage.micro_batch)
        self._rows = table.sort_by([("ended", "descending")]).to_pylist()

    def of(self, seq: int | None) -> dict[str, Any] | None:
        """Returns what became of a record in the newest attempt that tells; None: no attempt has told yet."""
        if seq is None:
            return None
        over = [row for row in self._rows if row["first"] <= seq <= row["last"]]
        # A row about some of the records in its range may be about others; a nack has an exact row always.
        exact = [row for row in over if not scattered(row)]
        for row in exact or over:
            told = {
                name: row[name] for name in ("outcome", "status", "error_class", "error", "sends", "attempt", "run")
            }
            return {**told, "ended": row["ended"].isoformat(timespec="seconds"), "exact": row in exact}
        return None


def spooled(pipeline: Pipeline, place: Place, stored: Pipeline | None = None) -> tuple[Record, Entry]:
    """Returns the record in a place, exact to the byte, and where it goes on from there. `stored`: the pipeline in
    force, whose spool is read, if `pipeline` is of a changed text: that may name any place as its spool. Raises
    ConfigError if it is not there (any more), SpoolError."""
    stored = stored or pipeline
    spool = open_spool(stored)
    node = _node(pipeline, place.node)
    stage = stage_of(spool, stored, _node(stored, place.node), place.micro_batch)
    for found in _around(spool, stage, place) if stage is not None else ():
        if found.place == place:
            if found.error is not None:
                return found.record, entry_of_letter(pipeline, found.error["node"])
            after = len(pipeline.processors) if node == PROCESSORS else 0
            return found.record, Entry(node if node.kind == "destinations" else PROCESSORS, after)
    raise ConfigError(f"{place} is not in the spool of {pipeline.id} any more: `conduit records peek` prints places")


def _around(spool: Spool, stage: Stage, place: Place) -> Iterator[Found]:
    """Yields the rows of the batches that may hold a place."""
    key = (place.slice, place.n)
    for nacked, files in ((False, stage.files), (True, stage.nacked_files)):
        for file in files:
            if not nacked and file.first is not None and file.last is not None and not file.first <= key <= file.last:
                continue
            names = NACKED_SCHEMA.names if nacked else SPOOL_SCHEMA.names
            for batch in spool.read(file, names):
                rows = list(zip(*(batch.column(name).to_pylist() for name in ("slice", "n", "ord"))))
                if (*key, place.ord) in rows:
                    at = rows.index((*key, place.ord))
                    one = batch.slice(at, 1)
                    error = orjson.loads(one.column("error")[0].as_py()) if nacked else None
                    yield Found(place, to_records(one, stage.origins)[0], error)
