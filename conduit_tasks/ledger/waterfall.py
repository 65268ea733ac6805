"""A record's way as a waterfall: read, staged, sealed, each attempt at each destination, and acked (SEMANTICS X5).

All of it is taken from what is stored anyway: manifests, the ledger, dead letters, the marks of acks. So times of steps
before the fan-out are of the whole micro-batch, those of attempts of the delivery of the whole micro-batch, but for the
end of a nacked one: the dead letter tells when its record was given up. `Notes` say what is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.ledger.entry import scattered
from conduit_tasks.ledger.query import covering
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.spool.checkpoint import Checkpoint, tokens, trusted
from conduit_tasks.spool.names import names
from conduit_tasks.spool.spool import folder_name

if TYPE_CHECKING:
    from conduit_tasks.ledger.find import Place
    from conduit_tasks.spool.manifest import SealedManifest, StageManifest
    from conduit_tasks.spool.spool import Spool
    from conduit_tasks.topology import Pipeline

OF_ATTEMPTS = (
    "An attempt's times are those of the delivery of the micro-batch: when this one record was sent is not stored, nor "
    "when it was answered, unless it became a dead letter: the attempt then ends when it did."
)
OF_SENDS = (
    "How often an acked record was sent is not stored: of an attempt is known how many sends of all its records were "
    "repeated, and where none was, this one was sent once."
)
COLLECTED = (
    "The micro-batch is collected (spool.retention): when it was read, staged and sealed is not known any more. The "
    "attempts are, as long as the ledger is kept (CONDUIT_LEDGER_RETENTION)."
)
NOT_STAGED = "When it was staged is not stored: an earlier version of Conduit Tasks staged it."
RANGE = "With * the range of the attempt holds records that it is not about: this one may be one of them."
ACKED_BY = "When its source got the ack is not stored: it was then at the latest."


@dataclass
class Step:
    """One step. `began` and `ended` in seconds since the epoch, None: not stored. `step`: read, processed, sealed,
    attempt or acked; of an attempt as the ledger has it: how the record's range ended, `status` of the attempt, error,
    `sends` (of a nack), `retried` (repeated sends of all records of the attempt; None: not stored), run and epoch.
    `exact`: False if other records lie in its range as well."""

    step: str
    node: str
    began: float | None
    ended: float | None
    outcome: str | None = None
    status: str | None = None
    error_class: str | None = None
    error: str | None = None
    sends: int | None = None
    run: str | None = None
    epoch: int = 0
    exact: bool = True
    retried: int | None = None


@dataclass
class Target:
    """The record's fate at one destination: first attempt, number of attempts, the answer of the last that
    tells, seconds from the first beginning to that attempt's end, of which so many in attempts."""

    destination: str
    attempts: int
    first: float | None = None
    outcome: str | None = None
    error_class: str | None = None
    seconds: float | None = None
    attempting: float | None = None


@dataclass
class Waterfall:
    """The steps of one record in one micro-batch, in order; what became of it at each destination of the file; and what
    is not stored."""

    place: Place
    steps: list[Step]
    targets: list[Target]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Waterfalls:
    """Makes the waterfalls of a pipeline's records. Raises SpoolError."""

    def __init__(self, pipeline: Pipeline, spool: Spool) -> None:
        self._pipeline, self._spool = pipeline, spool
        self._ledger, self._marks = Ledger(spool, pipeline.id), Checkpoint(spool, pipeline.id).read()
        self._now = {was: now for now, earlier in names(spool, pipeline.id).items() for was in earlier}
        self._rows: dict[int, pa.Table] = {}

    def of(self, place: Place) -> Waterfall:
        """Returns the waterfall of a record in one of its places."""
        path = self._spool.sealed(self._pipeline.id, place.micro_batch)
        manifest = self._spool.read_sealed(path) if path is not None else None
        attempts = list(self._attempts(place))
        steps, notes = [], []
        if manifest is None:
            notes.append(COLLECTED)
        else:
            steps = list(self._before(manifest, place, notes))
        steps += attempts
        if (acked := self._acked(place, manifest)) is not None:
            steps.append(acked)
            notes.append(ACKED_BY)
        if attempts:
            notes.append(OF_ATTEMPTS)
        if any(step.outcome == "acked" for step in attempts):
            notes.append(OF_SENDS)
        if not all(step.exact for step in attempts):
            notes.append(RANGE)
        return Waterfall(place, steps, list(self._targets(attempts)), notes)

    def _before(self, manifest: SealedManifest, place: Place, notes: list[str]) -> Iterator[Step]:
        """Yields the steps before the fan-out."""
        number = place.micro_batch
        entry = manifest.slices[max(n for n, base in enumerate(manifest.bases) if base <= place.seq)]
        began = None
        with suppress(KeyError, ValueError):
            began = int(entry.metadata["opencdc.readAt"]) / 1e9
        staged = self._staged(number, f"sources.{entry.source}")
        yield Step("read", f"sources.{entry.source}", began, staged)
        processed = self._staged(number, "processors")
        if self._stage(number, "processors") is not None:
            last = [
                at
                for source in {s.source for s in manifest.slices}
                if (at := self._staged(number, f"sources.{source}"))
            ]
            yield Step("processed", "processors", max(last, default=None), processed)
        yield Step("sealed", "seal", processed or staged, manifest.sealed_at or None)
        if staged is None:
            notes.append(NOT_STAGED)

    def _staged(self, number: int, node: str) -> float | None:
        stage = self._stage(number, node)
        return stage.staged_at or None if stage is not None else None

    def _stage(self, number: int, node: str) -> StageManifest | None:
        folder, prefix = self._spool.folder(self._pipeline.id, number), f"{folder_name(node)}-"
        ends = [name.removeprefix(prefix) for name, _ in self._spool.entries(folder) if name.startswith(prefix)]
        tokens = [int(end.removesuffix(".json")) for end in ends if end.removesuffix(".json").isdigit() and "." in end]
        return self._spool.read_stage(f"{folder}/{prefix}{max(tokens)}.json") if tokens else None

    def _attempts(self, place: Place) -> Iterator[Step]:
        if place.micro_batch not in self._rows:
            self._rows[place.micro_batch] = self._ledger.read(micro_batch=place.micro_batch)
        every = self._rows[place.micro_batch]
        rows = covering(every, place.seq).to_pylist()
        # The counts of an attempt are on its first row, which may be about others.
        counted = every.filter(pc.is_valid(every["retried"])).select(["attempt", "retried"]).to_pylist()
        retried = {row["attempt"]: row["retried"] for row in counted}
        exact = {(row["attempt"], row["destination"]) for row in rows if not scattered(row)}
        for row in sorted(rows, key=lambda row: (row["began"] or row["ended"], row["ended"])):
            wide = scattered(row)
            # A nack has an exact row always: what else the attempt says of this range is about others.
            if wide and (row["attempt"], row["destination"]) in exact:
                continue
            destination = self._now.get(row["destination"], row["destination"])
            began, ended = row["began"] and row["began"].timestamp(), row["ended"].timestamp()
            if row["outcome"] == "nacked" and not row["epoch"]:
                ended = min(ended, max(began or 0.0, self._given_up(destination, place) or ended))
            yield Step(
                "attempt",
                f"destinations.{destination}",
                began,
                ended,
                row["outcome"],
                row["status"],
                row["error_class"],
                row["error"],
                row["sends"],
                row["run"],
                row["epoch"],
                not wide,
                retried.get(row["attempt"]),
            )

    def _given_up(self, destination: str, place: Place) -> float | None:
        """Returns when the record became a dead letter of a destination; None: it is gone, or stored elsewhere."""
        from conduit_tasks.dead_letters.store import DeadLetterStore
        from conduit_tasks.settings import settings

        store = DeadLetterStore(settings().path(settings().dead_letters), self._pipeline.id)
        letter = store.live(destination, place.micro_batch, place.seq, place.ord)
        return None if letter is None else float(letter["at"].timestamp())

    def _acked(self, place: Place, manifest: SealedManifest | None) -> Step | None:
        """Returns the ack to the record's source, if a mark in the spool proves it."""
        node = f"acks.{place.source}"
        mark = self._marks.get(node)
        if mark is None or mark.number < place.micro_batch:
            return None
        if (
            manifest is not None
            and trusted(mark, tokens(self._spool, self._pipeline.id, [place.micro_batch])) < place.micro_batch
        ):
            return None
        return Step("acked", node, None, mark.at / 1e6)

    def _targets(self, attempts: Sequence[Step]) -> Iterator[Target]:
        present = [f"destinations.{each.id}" for each in self._pipeline.destinations]
        for node in dict.fromkeys([*present, *(step.node for step in attempts)]):
            own = [step for step in attempts if step.node == node and not step.epoch]
            yield _target(node.partition(".")[2], own)


def _target(destination: str, attempts: Sequence[Step]) -> Target:
    if not attempts:
        return Target(destination, 0)
    told = [step for step in attempts if step.outcome != "open"] or attempts
    last = told[-1]
    first = min(at for step in attempts if (at := step.began if step.began is not None else step.ended) is not None)
    spans = RangeSet.of(
        sorted(
            (round(s.began * 1e6), max(round(s.began * 1e6), round((s.ended or 0) * 1e6)))
            for s in attempts
            if s.began is not None
        )
    )
    return Target(
        destination,
        len({(step.began, step.ended) for step in attempts}),
        first,
        last.outcome,
        last.error_class,
        round((last.ended or first) - first, 6),
        round(sum(end - begin for begin, end in spans) / 1e6, 6),
    )


def bar(began: float | None, ended: float | None, span: tuple[float, float], width: int) -> str:
    """Returns a step as a bar of characters: `span` is the whole width."""
    if ended is None and began is None:
        return ""
    first, last = (began if began is not None else ended), (ended if ended is not None else began)
    assert first is not None
    assert last is not None
    whole = (span[1] - span[0]) or 1.0
    start = min(width - 1, max(0, int((first - span[0]) / whole * width)))
    end = min(width, max(start + 1, round((last - span[0]) / whole * width)))
    return " " * start + ("█" * (end - start) if began is not None and ended is not None else "▏")


def span_of(steps: Iterable[Step]) -> tuple[float, float]:
    """Returns the first and the last time of the steps."""
    times = [at for step in steps for at in (step.began, step.ended) if at is not None]
    return (min(times), max(times)) if times else (0.0, 0.0)
