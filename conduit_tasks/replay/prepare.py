"""A replay's records: read again, processed by the pipeline as its file is now, chosen by event time, and fixed.

Sources that can be read again are, from their beginning up to where the live stream is planned; of the others what the
spool still keeps (`spool.retention`). The result lies beside the spool's micro-batches, under the run's id, so that
every destination and every attempt sees the same records under the same numbers (invariant 3).
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from conduit_tasks.broker.replay import MICRO, Joined
from conduit_tasks.connectors.base import Limit, Position, Source
from conduit_tasks.connectors.registry import source_class
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.plan import source_connector
from conduit_tasks.micro_batch.process import NODE, FileReader
from conduit_tasks.micro_batch.read import SourceReader, group_slices, source_origins
from conduit_tasks.micro_batch.reprocess import own_spark
from conduit_tasks.micro_batch.rows import Pass
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.micro_batch.stage import keeping, run_pass
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.replay.interval import Ask, EventTime
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.spool import Spool, folder_name

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context

LIMIT = Limit(records=100_000, bytes=64 << 20)
"""What is read, processed and held under one lease of a destination at once."""
FOLDER = "~replays"
"""Beside the pipelines' folders of the spool; no id of a pipeline holds a `~`."""
MANIFEST = "replay.json"
MARK = "conduit.replay"
"""Metadata of every replayed record: the run."""


@dataclass(frozen=True)
class Portion:
    """Some records, numbered from 0 (column `n`). `batch`: of the spool, that they were taken from; else None."""

    file: PartFile
    source: str
    total: int
    origins: tuple[Origin, ...]
    batch: int | None = None


@dataclass(frozen=True)
class Prepared:
    """What a replay sends. Counts are of distinct records: `read`, `undated` (without an event time), `nacked` before
    the fan-out, where the live stream has their dead letter."""

    token: str
    start: int
    end: int
    at: float
    portions: tuple[Portion, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    generation: str = ""


def spool_of(context: Context, run: str) -> Spool:
    """Where a run's records are."""
    return Spool(f"{context.spool.root}/{FOLDER}/{folder_name(context.pipeline.id)}/{folder_name(run)}")


def prepared(context: Context, run: str) -> Prepared | None:
    """What was prepared for a run; None where nothing was, or it is collected."""
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
    """Reads, or finds what an earlier attempt of this run has read. What was read in another `generation` is read anew
    (None: never), unless a destination is under way with it. Raises ConfigError, SourceError, SpoolError, LeaseHeld."""
    broker = context.broker
    with broker.acquire("replay", context.owner, wait=wait) as lease, keeping(lease):
        found = prepared(context, run)
        if found is not None and (found.start, found.end) != (ask.start, ask.end):
            raise ConfigError(f"run {run} replays another interval already; give this one a --run of its own")
        if found is not None and (generation in (None, found.generation) or _under_way(context, run, found)):
            return found
        _collect(context)
        spool = spool_of(context, run)
        made = read(context, spool, ask, lease.token, generation or "")
        spool.put(MANIFEST, orjson.dumps(asdict(made)))
        return made


def read(context: Context, spool: Spool, ask: Ask, token: int, generation: str = "") -> Prepared:
    """The records of the interval, written into `spool`; nothing else changes."""
    counts: Counter[str] = Counter()
    portions: list[Portion] = []
    with own_spark(context.pipeline):
        for source in context.pipeline.sources:
            again = source_class(source.plugin).ack_on == "delivered"
            batches = _again(context, source.id, token, counts) if again else _spooled(context, source.id)
            for origins, files, of, batch in batches:
                choose = _Choice(context, source.id, ask, counts, again=again)
                for file in files:
                    portion = choose.portion(of, file, origins, spool, token, len(portions), batch)
                    if portion is not None:
                        portions.append(portion)
    if counts["read"] and counts["undated"] == counts["read"] and not context.pipeline.event_time:
        raise ConfigError(
            f"pipeline {context.pipeline.id}: none of its records says when it happened; name the field with "
            "`event-time`, such as .Payload.After.time"
        )
    return Prepared(str(token), ask.start, ask.end, time.time(), tuple(portions), dict(counts), generation)


Batch = tuple[tuple[Origin, ...], list[PartFile], Spool, int | None]


def _again(context: Context, source_id: str, token: int, counts: Counter[str]) -> Iterator[Batch]:
    """Everything a source has, in steps, as the fan-out would see it."""
    pipeline = context.pipeline
    source = pipeline.source(source_id)
    position: Position = {}
    planner = source_connector(pipeline, source_id)
    try:
        for step in range(1 << 30):
            slices = planner.plan(position, LIMIT)
            if not slices:
                return
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
                yield tuple(origins), files, own.spool, None
            before = dict(position)
            for number, s in enumerate(slices):
                position[s.part] = ends[number] if s.open else s.end
            if position == before:
                return
    finally:
        planner.close()


def _spooled(context: Context, source_id: str) -> Iterator[Batch]:
    """What the spool keeps of a source that cannot be read again."""
    spool, pipeline = context.spool, context.pipeline
    for number in spool.micro_batches(pipeline.id):
        path = spool.sealed(pipeline.id, number)
        if path is not None:
            manifest = spool.read_sealed(path)
            if any(s.source == source_id for s in manifest.slices):
                yield tuple(origins_of(pipeline.id, manifest.slices)), list(manifest.files), spool, number


class _Choice:
    """Chooses by event time. `again`: the source is read again, maybe further than the live stream is planned."""

    def __init__(self, context: Context, source_id: str, ask: Ask, counts: Counter[str], *, again: bool) -> None:
        self._context, self._source, self._ask, self._counts = context, source_id, ask, counts
        self._time = EventTime(context.pipeline)
        self._filtered = [d.id for d in context.pipeline.destinations if d.filters]
        planned = Joined(0, {source_id: context.broker.position(source_id)})
        self._live = Before(context, source_id, planned) if again else None

    def portion(  # noqa: PLR0917 - where from and where to
        self,
        of: Spool,
        file: PartFile,
        origins: Sequence[Origin],
        spool: Spool,
        token: int,
        number: int,
        batch: int | None,
    ) -> Portion | None:
        """Those of a file, in order, numbered anew; None where there are none."""
        extra = [id for id in self._filtered if f"to.{id}" in of.columns(file)]
        writer, total, last = None, 0, None
        for rows in of.read(file, [*SPOOL_SCHEMA.names, *(f"to.{id}" for id in extra)]):
            keep = self._keep(rows.select(SPOOL_SCHEMA.names), origins)
            chosen = rows.filter(pa.array(keep))
            if not chosen.num_rows:
                continue
            numbers = []
            for place in zip(chosen.column("slice").to_pylist(), chosen.column("n").to_pylist()):
                total += place != last
                last = place
                numbers.append(total - 1)
            if writer is None:
                writer = spool.writer(self._context.pipeline.id, number, "replay", token).part(0, extra)
            at = chosen.schema.get_field_index("n")
            writer.write(chosen.set_column(at, chosen.schema.field(at), pa.array(numbers, pa.int64())))
        if writer is None:
            return None
        self._counts["chosen"] += total
        return Portion(writer.close(), self._source, total, tuple(origins), batch)

    def _keep(self, rows: pa.RecordBatch, origins: Sequence[Origin]) -> np.ndarray[Any, Any]:
        keep = np.zeros(rows.num_rows, bool)
        for i, record in enumerate(to_records(rows, origins)):
            if record.origin.connector != self._source:
                continue
            at = self._time(record)
            self._counts["read"] += record.ordinal == 0
            self._counts["undated"] += at is None and record.ordinal == 0
            if at is not None and self._ask.start <= at < self._ask.end:
                # What the live stream has not planned yet, it delivers itself.
                keep[i] = self._live is None or self._live(record.position) is not False
        return keep


class Before:
    """Whether a record of a source lies before where a position stands; None where the source cannot say."""

    def __init__(self, context: Context, source_id: str, joined: Joined) -> None:
        self._connector: Source = source_connector(context.pipeline, source_id)
        position = joined.sources.get(source_id, {})
        if type(self._connector).place is Source.place:
            self._ends = None
        else:
            self._ends = {part: self._connector.place_of_token(token) for part, token in position.items()}
        self._connector.close()

    @property
    def known(self) -> bool:
        """Whether the source can say."""
        return self._ends is not None

    def __call__(self, position: bytes) -> bool | None:
        if self._ends is None:
            return None
        place = self._connector.place(position)
        return None if place is None else place[1] < self._ends.get(place[0], -1)


def _under_way(context: Context, run: str, found: Prepared) -> bool:
    shares = [context.broker.replay_share(d.id, run) for d in context.pipeline.destinations]
    return any(s is not None and s.of(found.token) and not s.finished for s in shares)


def _collect(context: Context) -> None:
    """Removes what replays left that ended, or were forgotten, seven retentions ago."""
    root = f"{FOLDER}/{folder_name(context.pipeline.id)}"
    store, oldest = context.spool.store, time.time() - max(context.pipeline.spool_retention, 86_400.0) * 7
    for name, is_folder in store.names(root):
        manifest = f"{root}/{name}/{MANIFEST}"
        if is_folder and store.size(manifest) is not None and orjson.loads(context.spool.get(manifest))["at"] < oldest:
            store.delete(f"{root}/{name}")


def _here(function: Any, pieces: Sequence[Any]) -> list[Any]:
    return [function(piece) for piece in pieces]


def spoken(at: int) -> str:
    """A time in µs as people write it."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at / MICRO, UTC).isoformat().replace("+00:00", "Z")
