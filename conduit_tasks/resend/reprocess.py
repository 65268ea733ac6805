"""Reprocesses records that failed before the fan-out, by the processor that failed them and all that follow (X2).

Uses the pipeline file as it is now, and the same passes as for live records, over a temporary spool that is removed
afterwards: so processors, triggers, ordinals and ids are what they would have been. A record enters as it had come to
the failing processor (or to the first of the record-wise ones around it, which saw it in one pass).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from conduit_tasks.micro_batch.pass_plan import Pass, PassResult
from conduit_tasks.micro_batch.process import NODE, FileReader
from conduit_tasks.micro_batch.stage import run_pass
from conduit_tasks.processors import registry
from conduit_tasks.processors.chain import has_frames
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import SPOOL_SCHEMA, spool_batch, to_records
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Pipeline, Processor

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.manifest import PartFile

UNDECODED = "decode"
"""Error class of a record that its source could not read: no processor has seen it, and none can repair it."""

Place = tuple[int, int]
"""(micro-batch, seq) of a record; derived ones share it."""


@dataclass(frozen=True)
class Start:
    """Entry point of a record: `section` (`sources.<id>` or `processors`), and the first processor of it."""

    section: str
    first: int


@dataclass
class Passed:
    """Outcome for the records. `sent`: per destination the records that its trigger wants, in order; `nacked`: records
    that failed again; every other place was filtered, or is wanted by no destination."""

    sent: dict[str, list[tuple[Place, Record]]] = field(default_factory=dict)
    nacked: list[tuple[Place, Record, dict[str, str]]] = field(default_factory=list)


def start_of(pipeline: Pipeline, node: str, error_class: str) -> Start | str:
    """Returns the entry point of a letter of this node; or, in words, why it has none."""
    section, _, failed = node.partition("/")
    if error_class == UNDECODED:
        return "could not be read from their source: fix its data or its settings and replay their interval"
    processors = _section(pipeline, section)
    if processors is None:
        return f"failed at {section}, which {pipeline.id} has no more"
    at = next((i for i, p in enumerate(processors) if p.id == failed), None)
    if at is None:
        if has_frames(processors):
            return f"failed at {node}, which {pipeline.id} has no more: give the processor its id back"
        return Start(section, 0)
    while at and not registry.is_frame(processors[at]) and not registry.is_frame(processors[at - 1]):
        at -= 1
    return Start(section, at)


def reprocess(context: Context, letters: Sequence[DeadLetter], *, isolate_poison: bool) -> Passed:
    """Reprocesses letters that `start_of` gives a Start, in order of places. `isolate_poison`: run processors in
    children.

    Frame processors start a Spark of this process, which is stopped afterwards. Raises ConfigError, SpoolError.
    """
    with tempfile.TemporaryDirectory(prefix="conduit-redrive-") as folder, own_spark(context.pipeline):
        return _Passes(replace(context, spool=Spool(folder)), letters, isolate_poison).run()


class _Passes:
    def __init__(self, context: Context, letters: Sequence[DeadLetter], isolate_poison: bool) -> None:
        self._context, self._isolate_poison = context, isolate_poison
        self._places = sorted({(x.micro_batch, x.seq) for x in letters})
        self._tokens = count(1)
        self._passed = Passed()
        numbers = {place: n for n, place in enumerate(self._places)}
        self._origins, slices = origins_of(letters)
        self._rows: dict[Start, list[tuple[int, int, Record]]] = {}
        for letter, slice in zip(letters, slices):
            start = start_of(context.pipeline, letter.node, letter.error_class)
            assert isinstance(start, Start), start
            row = (slice, numbers[letter.micro_batch, letter.seq], letter.record)
            self._rows.setdefault(start, []).append(row)

    def run(self) -> Passed:
        pipeline = self._context.pipeline
        files: list[PartFile] = []
        for source in pipeline.sources:
            for start in self._starts(source.node):
                files += self._pass(start, [self._file(start)], final=not pipeline.processors)
        if pipeline.processors and files:
            files = self._pass(Start(NODE, 0), files, final=True)
        for start in self._starts(NODE):
            files += self._pass(start, [self._file(start)], final=True)
        self._out(files)
        for sent in self._passed.sent.values():
            sent.sort(key=lambda each: (each[0], each[1].ordinal))
        return self._passed

    def _starts(self, section: str) -> list[Start]:
        return sorted((s for s in self._rows if s.section == section), key=lambda s: s.first)

    def _file(self, start: Start) -> PartFile:
        """Writes the letters that enter at `start` to a part file of the spool."""
        rows = sorted(self._rows[start], key=lambda row: (row[0], row[1], row[2].ordinal))
        batch = spool_batch([s for s, _, _ in rows], [n for _, n, _ in rows], [r for _, _, r in rows])
        context = self._context
        part = context.spool.writer(context.pipeline.id, 0, "letters", next(self._tokens)).part(0)
        part.write(batch)
        return part.close()

    def _pass(self, start: Start, files: Sequence[PartFile], *, final: bool) -> list[PartFile]:
        pipeline = self._context.pipeline
        plan = Pass(
            pipeline=pipeline.id,
            micro_batch=0,
            node=start.section,
            token=next(self._tokens),
            processors=(_section(pipeline, start.section) or ())[start.first :],
            destinations=pipeline.destinations,
            final=final,
            isolate_poison=self._isolate_poison,
        )
        results: list[PassResult] = run_pass(
            self._context, plan, FileReader(tuple(self._origins)), list(enumerate(files)), _here
        )
        for result in results:
            for file in result.nacked_files:
                for batch in self._context.spool.read(file):
                    errors = [orjson.loads(error) for error in batch.column("error").to_pylist()]
                    for (place, record), error in zip(self._records(batch), errors):
                        self._passed.nacked.append((place, record, error))
        return [file for result in results for file in result.files]

    def _out(self, files: Sequence[PartFile]) -> None:
        spool = self._context.spool
        for file in files:
            columns = spool.columns(file)
            for destination in self._context.pipeline.destinations:
                wanted = f"to.{destination.id}"
                rows = spool.read(file, SPOOL_SCHEMA.names, wanted if wanted in columns else None)
                sent = self._passed.sent.setdefault(destination.id, [])
                for batch in rows:
                    sent += self._records(batch)

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Place, Record]]:
        for n, record in zip(batch.column("n").to_pylist(), to_records(batch, self._origins)):
            yield self._places[n], record


def origins_of(letters: Sequence[DeadLetter]) -> tuple[list[Origin], list[int]]:
    """Returns the records' origins, and for each record the place of its own."""
    places: dict[tuple[Any, ...], int] = {}
    origins: list[Origin] = []
    slices = []
    for letter in letters:
        origin = letter.record.origin
        name = (origin.connector, origin.partition, *sorted(origin.metadata.items()))
        if name not in places:
            places[name] = len(origins)
            origins.append(origin)
        slices.append(places[name])
    return origins, slices


def _here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """Runs without executors, as dead letters are few."""
    return [function(piece) for piece in pieces]


def _section(pipeline: Pipeline, name: str) -> tuple[Processor, ...] | None:
    if name == NODE:
        return tuple(pipeline.processors)
    return next((tuple(s.processors) for s in pipeline.sources if s.node == name), None)


@contextmanager
def own_spark(pipeline: Pipeline) -> Iterator[None]:
    """Stops the Spark context that frame processors start, if none was running before."""
    sections = [pipeline.processors, *(source.processors for source in pipeline.sources)]
    if not any(map(has_frames, sections)):
        yield
        return
    from pyspark import SparkContext

    before = SparkContext._active_spark_context
    try:
        yield
    finally:
        started = SparkContext._active_spark_context
        if started is not None and started is not before:
            started.stop()
