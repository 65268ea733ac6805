"""Records of a replay: read again, processed by the pipeline as its file is now, chosen by event time, and fixed.

Sources that can be read again are read from their beginning to the position up to which the live stream is planned; of
the others the replay has what the spool still keeps (`spool.retention`). The result is stored beside the spool's
micro-batches, under the run's id, so that every destination and every attempt sees the same records under the same
numbers (invariant 3).
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from conduit_tasks.connectors.base import Limit, Position
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.registry import source_class
from conduit_tasks.connectors.sources import source_connector, source_origins
from conduit_tasks.errors import ConfigError, PipelineStopped
from conduit_tasks.filters import compile_filters
from conduit_tasks.filters.batch import mask
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.pass_plan import Pass
from conduit_tasks.micro_batch.process import NODE, FileReader
from conduit_tasks.micro_batch.read import SourceReader, group_slices
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.micro_batch.stage import run_pass
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.resend.interval import Ask, EventTime
from conduit_tasks.resend.reprocess import own_spark
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.spool import Spool, folder_name

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context

LIMIT = Limit(records=100_000, bytes=64 << 20)
"""Limit of what is read, processed and held under one lease of a destination at once."""
FOLDER = "~replays"
"""Folder beside the pipelines' folders of the spool; no id of a pipeline holds a `~`."""
MANIFEST = "replay.json"


@dataclass(frozen=True)
class Portion:
    """Some records, numbered from 0 (column `n`). `batch`: micro-batch of the spool that they were taken from; None if
    they were read again from the source."""

    file: PartFile
    source: str
    total: int
    origins: tuple[Origin, ...]
    batch: int | None = None


@dataclass(frozen=True)
class Prepared:
    """Records that a replay sends. Counts are of distinct records: `read`, `undated` (without an event time), `nacked`
    before the fan-out (the live stream has their dead letter)."""

    token: str
    start: int
    end: int
    at: float
    portions: tuple[Portion, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    generation: str = ""


def spool_of(context: Context, run: str) -> Spool:
    """Returns the spool that holds a run's records."""
    return Spool(f"{context.spool.root}/{FOLDER}/{folder_name(context.pipeline.id)}/{folder_name(run)}")


def prepared(context: Context, run: str) -> Prepared | None:
    """Returns what was prepared for a run; None if nothing was, or it has been collected."""
    spool = spool_of(context, run)
    if spool.store.size(MANIFEST) is None:
        return None
    data = orjson.loads(spool.get(MANIFEST))
    portions = [
        Portion(
            PartFile(**{**p["file"], "first": None, "last": None}),
            p["source"],
            p["total"],
            tuple(Origin(**o) for o in p["origins"]),
            p["batch"],
        )
        for p in data.pop("portions")
    ]
    return Prepared(**data, portions=tuple(portions))


def prepare(context: Context, ask: Ask, run: str, *, generation: str | None, wait: float) -> Prepared:
    """Reads the records, or returns what an earlier attempt of this run has read. What was read in another `generation`
    is read again (None: never), unless a destination is under way with it. Raises ConfigError, SourceError, SpoolError,
    LeaseHeld, PipelineStopped."""
    broker = context.broker
    with broker.leases.acquire("replay", context.owner, wait=wait) as lease, keeping(lease):
        found = prepared(context, run)
        if found is not None and (found.start, found.end) != (ask.start, ask.end):
            raise ConfigError(f"run {run} replays another interval already; give this one a --run of its own")
        if found is not None and (generation in (None, found.generation) or _under_way(context, run, found)):
            return found
        if (status := broker.lifecycle.stored_status()) in ("stopped", "degraded"):
            # Nothing of it would be delivered.
            raise PipelineStopped(f"pipeline {context.pipeline.id} is {status}; `conduit start` it, then replay")
        _collect(context)
        spool = spool_of(context, run)
        with halting_call(broker, "replay"):
            made = read(context, spool, ask, lease.token, generation or "")
        spool.put(MANIFEST, orjson.dumps(asdict(made)))
        return made


def read(context: Context, spool: Spool, ask: Ask, token: int, generation: str = "") -> Prepared:
    """Writes the records of the interval into `spool`, and returns what was prepared; nothing else changes."""
    from conduit_tasks.processors.dedupe import in_memory

    counts: Counter[str] = Counter()
    portions: list[Portion] = []
    # Records that a replay sees must not make `dedupe` take live records for duplicates.
    with own_spark(context.pipeline), in_memory():
        for source in context.pipeline.sources:
            again = issubclass(source_class(source.plugin), Replayable)
            batches = _again(context, source.id, token, ask, counts) if again else _spooled(context, source.id)
            choose = _Choice(context, source.id, ask, counts, again=again)
            for batch in batches:
                for file in batch.files:
                    portion = choose.portion(batch, file, spool, token, len(portions))
                    if portion is not None:
                        portions.append(portion)
    if counts["read"] and counts["undated"] == counts["read"] and not context.pipeline.event_time:
        raise ConfigError(
            f"pipeline {context.pipeline.id}: none of its records says when it happened; name the field with "
            "`event-time`, such as .Payload.After.time"
        )
    return Prepared(str(token), ask.start, ask.end, time.time(), tuple(portions), dict(counts), generation)


@dataclass
class Batch:
    """Records to choose from. `number`: the micro-batch that they were spooled in; None: read again. `ahead`: filled in
    by `_Choice`: the numbers of slices with a record that the live stream is not planned to have yet."""

    spool: Spool
    origins: tuple[Origin, ...]
    files: list[PartFile]
    number: int | None = None
    ahead: set[int] = field(default_factory=set)


def _again(context: Context, source_id: str, token: int, ask: Ask, counts: Counter[str]) -> Iterator[Batch]:
    """Yields everything that a source has, in steps, as the fan-out would see it: up to the position to which the live
    stream is planned, if the source can tell."""
    pipeline = context.pipeline
    source = pipeline.source(source_id)
    planner = source_connector(pipeline, source_id)
    live = Before(context, source_id, context.broker.positions.planned(source_id))
    try:
        # A time in the payload has nothing to do with a record's position in the source.
        assert isinstance(planner, Replayable)
        position = planner.history(None if pipeline.event_time else ask.start)
        passed: set[str] = set()
        for step in range(1 << 30):
            slices = planner.plan(position, LIMIT)
            if not slices or live.reached(position, passed):
                return
            if ahead := [s for s in slices if s.part in passed and not s.open]:
                # Records that arrive while this goes on belong to the live stream.
                position.update({s.part: s.end for s in ahead})
                slices = [s for s in slices if s not in ahead]
            with tempfile.TemporaryDirectory(prefix="conduit-replay-") as folder:
                own = replace(context, spool=Spool(folder))
                origins, processors = source_origins(pipeline, source, slices)
                plan = Pass(
                    pipeline=pipeline.id,
                    micro_batch=step,
                    token=token,
                    node=source.node,
                    processors=processors,
                    destinations=pipeline.destinations,
                    final=not pipeline.processors,
                )
                reader = SourceReader(pipeline, source_id, tuple(origins))
                results = run_pass(own, plan, reader, group_slices(slices, 0), _here)
                ends = {n: end for result in results for n, end in result.ends.items()}
                files = [file for result in results for file in result.files]
                counts["nacked"] += sum(result.nacked for result in results)
                if pipeline.processors and files:
                    plan = replace(plan, node=NODE, processors=pipeline.processors, final=True)
                    results = run_pass(own, plan, FileReader(tuple(origins)), list(enumerate(files)), _here)
                    files = [file for result in results for file in result.files]
                    counts["nacked"] += sum(result.nacked for result in results)
                yield (batch := Batch(own.spool, tuple(origins), files))
            passed |= {slices[number].part for number in batch.ahead}
            before = dict(position)
            for number, s in enumerate(slices):
                position[s.part] = ends[number] if s.open else s.end
            if slices and position == before:
                return
    finally:
        planner.close()


def _spooled(context: Context, source_id: str) -> Iterator[Batch]:
    """Yields what the spool keeps of a source that cannot be read again."""
    spool, pipeline = context.spool, context.pipeline
    for number in spool.micro_batches(pipeline.id):
        path = spool.sealed(pipeline.id, number)
        if path is not None:
            manifest = spool.read_sealed(path)
            if any(s.source == source_id for s in manifest.slices):
                yield Batch(spool, tuple(origins_of(pipeline.id, manifest.slices)), list(manifest.files), number)


class _Choice:
    """Choice of records by event time. `again`: the source is read again, maybe further than the live stream is
    planned."""

    def __init__(self, context: Context, source_id: str, ask: Ask, counts: Counter[str], *, again: bool) -> None:
        self._context, self._source, self._ask, self._counts = context, source_id, ask, counts
        self._time = EventTime(context.pipeline)
        # The spool's trigger columns are not used: since then the file may have changed, and a destination joined.
        self._filters = [(d.id, compile_filters(d.filters)) for d in context.pipeline.destinations if d.filters]
        self._live = Before(context, source_id, context.broker.positions.planned(source_id)) if again else None

    def portion(self, batch: Batch, file: PartFile, spool: Spool, token: int, number: int) -> Portion | None:
        """Writes the chosen records of a file, in order, with new numbers and the result of each trigger. Returns None
        if there are none."""
        writer, total, last = None, 0, None
        for rows in batch.spool.read(file, SPOOL_SCHEMA.names):
            chosen = rows.filter(pa.array(self._keep(rows, batch)))
            if not chosen.num_rows:
                continue
            numbers = []
            for place in zip(chosen.column("slice").to_pylist(), chosen.column("n").to_pylist()):
                total += place != last
                last = place
                numbers.append(total - 1)
            wanted = [(id, mask(matcher, chosen, batch.origins)) for id, matcher in self._filters]
            at = chosen.schema.get_field_index("n")
            chosen = chosen.set_column(at, chosen.schema.field(at), pa.array(numbers, pa.int64()))
            for id, column in wanted:
                every = np.ones(chosen.num_rows, bool)
                chosen = chosen.append_column(f"to.{id}", pa.array(every if column is None else column))
            if writer is None:
                ids = [id for id, _ in self._filters]
                writer = spool.writer(self._context.pipeline.id, number, "replay", token).part(0, ids)
            writer.write(chosen)
        if writer is None:
            return None
        self._counts["chosen"] += total
        return Portion(writer.close(), self._source, total, batch.origins, batch.number)

    def _keep(self, rows: pa.RecordBatch, batch: Batch) -> np.ndarray[Any, Any]:
        keep, slices = np.zeros(rows.num_rows, bool), rows.column("slice").to_pylist()
        for i, record in enumerate(to_records(rows, batch.origins)):
            if record.origin.connector != self._source:
                continue
            if self._live is not None and self._live(record.position) is False:
                # The live stream itself delivers records that it has not planned yet.
                batch.ahead.add(slices[i])
                continue
            at = self._time(record)
            self._counts["read"] += record.ordinal == 0
            self._counts["undated"] += at is None and record.ordinal == 0
            keep[i] = at is not None and self._ask.start <= at < self._ask.end
        return keep


class Before:
    """Comparison of a source's records with `position`: returns whether a record lies before it; None if the source
    cannot say."""

    def __init__(self, context: Context, source_id: str, position: Position) -> None:
        self._connector, self._position = source_connector(context.pipeline, source_id), position
        self._tells: Replayable | None = None
        if isinstance(self._connector, Replayable) and type(self._connector).before is not Replayable.before:
            self._tells = self._connector
        self.known = self._tells is not None

    def __call__(self, position: bytes) -> bool | None:
        return self._tells.before(position, self._position) if self._tells is not None else None

    def reached(self, position: Position, passed: Collection[str]) -> bool:
        """Returns whether reading has come to it in every part. `passed`: parts in which reading was seen to be beyond
        it."""
        return self.known and all(p in passed or position.get(p) == at for p, at in self._position.items())


def _under_way(context: Context, run: str, found: Prepared) -> bool:
    shares = [context.broker.replays.share(d.id, run) for d in context.pipeline.destinations]
    return any(s is not None and s.of(found.token) and not s.finished for s in shares)


def _collect(context: Context) -> None:
    """Removes the records of replays that were prepared longer than seven retentions ago, a retention being at least a
    day."""
    root = f"{FOLDER}/{folder_name(context.pipeline.id)}"
    spool, oldest = context.spool, time.time() - max(context.pipeline.spool_retention, 86_400.0) * 7
    for name, is_folder in spool.entries(root):
        manifest = f"{root}/{name}/{MANIFEST}"
        if is_folder and spool.store.size(manifest) is not None and orjson.loads(spool.get(manifest))["at"] < oldest:
            spool.remove(f"{root}/{name}")


def _here(function: Any, pieces: Sequence[Any]) -> list[Any]:
    return [function(piece) for piece in pieces]
