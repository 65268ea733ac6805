"""A pipeline's processors and triggers, applied to some records in this process.

The steps are those of a run without reading and delivery: source processors, pipeline processors, each destination's
trigger, destination processors. Derived records are numbered as in a run, and a record is nacked as a whole. Processors
over DataFrames (`sql`, `python` with `mode: frame`) run in a local Spark. `dedupe` remembers in memory, so that nothing
is left in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from conduit_tasks.connectors.sources import attributes
from conduit_tasks.errors import ConfigError
from conduit_tasks.filters import compile_filters
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.chain import Chain, segments
from conduit_tasks.processors.dedupe import in_memory
from conduit_tasks.processors.result import NACKED
from conduit_tasks.record.cloudevents import view
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.topology import Destination, Pipeline, Processor, Source


@dataclass(frozen=True)
class Nack:
    """One record that failed: the node, the processor, the message, and the dead letter's error class."""

    node: str
    processor: str
    message: str
    error_class: str


@dataclass
class Walked:
    """Result of a walk. `arrived`: destination → the records that it would send, in order."""

    arrived: dict[str, list[Record]]
    nacks: list[Nack] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A record with two numbers that everything derived from it shares: its source's, and its own there (`n`)."""

    source: int
    n: int
    record: Record

    @property
    def seq(self) -> tuple[int, int]:
        return self.source, self.n


def walk(pipeline: Pipeline, inputs: Sequence[tuple[str, Record]]) -> Walked:
    """Takes `inputs`, pairs of (source id, record), through the pipeline. Sets the records' origins.

    Raises ConfigError if a processor cannot be built, KeyError if there is no such source.
    """
    origins = [origin_of(pipeline, source) for source in pipeline.sources]
    numbers = {source.id: number for number, source in enumerate(pipeline.sources)}
    rows: list[Row] = []
    for n, (source_id, record) in enumerate(inputs):
        number = numbers[source_id]
        record.origin = origins[number]
        rows.append(Row(number, n, record))
    way = Walk(pipeline)
    with in_memory():
        way.from_sources(rows)
    return way.walked


def origin_of(pipeline: Pipeline, source: Source) -> Origin:
    """Returns what the records of a source share by the pipeline file alone."""
    return Origin(pipeline.id, source.id, "", attributes(source)[0])


class Walk:
    """The way of some records through a pipeline; `walked` is what became of them so far."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.walked = Walked({each.id: [] for each in pipeline.destinations})

    def from_sources(self, rows: list[Row]) -> None:
        """Takes rows from their sources to the destinations. Raises ConfigError."""
        read: list[Row] = []
        for number, source in enumerate(self.pipeline.sources):
            own = [row for row in rows if row.source == number]
            read += self.section((*attributes(source)[1], *source.processors), own, source.node)
        self.fan_out(self.section(self.pipeline.processors, read, "processors"))

    def fan_out(self, rows: list[Row]) -> None:
        """Takes rows that passed the pipeline's processors to each destination that wants them. Raises ConfigError."""
        for destination in self.pipeline.destinations:
            wanted = [Row(row.source, row.n, row.record.copy()) for row in self.wanted(destination, rows)]
            self.arrive(destination, self.section(destination.processors, wanted, destination.node))

    def arrive(self, destination: Destination, rows: list[Row]) -> None:
        """Adds what the destination would send."""
        self.walked.arrived[destination.id] += [row.record for row in rows]

    def wanted(self, destination: Destination, rows: list[Row]) -> list[Row]:
        """Returns the rows that the destination's trigger wants. Raises ConfigError."""
        matcher = compile_filters(destination.filters)
        return [row for row in rows if matcher.always or matcher.matches(view(row.record, matcher.attributes))]

    def section(self, processors: Sequence[Processor], rows: list[Row], node: str) -> list[Row]:
        """Returns what the processors make of the rows; what they nack is in `walked`. Raises ConfigError."""
        for step in segments(processors) if processors else []:
            rows = self.apply(step, rows, node)
        return rows

    def apply(self, step: tuple[Processor, ...] | FrameProcessor, rows: list[Row], node: str) -> list[Row]:
        """Returns what one step of a section makes of the rows. Raises ConfigError."""
        return self._frame(step, rows, node) if isinstance(step, FrameProcessor) else self._chain(step, rows, node)

    def _frame(self, step: FrameProcessor, rows: list[Row], node: str) -> list[Row]:
        from conduit_tasks.operate.frames import apply

        if not rows:
            return []
        # Earlier processors may have put records of several sources into another order than by number.
        origins = {row.source: row.record.origin for row in rows}
        everyone = [origins.get(number, Origin("", "", "")) for number in range(max(origins) + 1)]
        try:
            made, culprits = apply(step, [(row.source, row.n, row.record) for row in rows], everyone)
        except ConfigError as error:
            raise ConfigError(f"{node}: processor {step.id}: {error}") from error
        self.walked.nacks += [Nack(node, step.id, message, NACKED) for message in culprits.values()]
        return [Row(*each) for each in made]

    def _chain(self, processors: Sequence[Processor], rows: list[Row], node: str) -> list[Row]:
        chain = Chain(processors)
        try:
            results = [chain.writable(result) for result in chain.run([row.record for row in rows])]
        finally:
            chain.close()
        out: list[Row] = []
        for _, group in groupby(zip(rows, results), key=lambda each: each[0].seq):
            same = list(group)
            failed = next((result for _, result in same if result.error is not None), None)
            if failed is not None:
                # Derived records are acked or nacked together: they share the position.
                nack = Nack(node, failed.processor or "", failed.error or "", failed.error_class or "processor")
                self.walked.nacks.append(nack)
                continue
            made = [record for _, result in same for record in result.records]
            for ordinal, record in enumerate(made):
                record.ordinal = ordinal
                out.append(Row(same[0][0].source, same[0][0].n, record))
        return out
