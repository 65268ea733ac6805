"""A pipeline's processors and triggers, applied to some records in this process, for the pipeline's unit tests.

The steps are those of a run without reading and delivery: source processors, pipeline processors, each destination's
trigger, destination processors. Derived records are numbered as in a run, and a record is nacked as a whole. Processors
over DataFrames (`sql`, `python` with `mode: frame`) run in a local Spark. `dedupe` remembers in memory, so that a test
leaves no trace in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from conduit_tasks.errors import ConfigError
from conduit_tasks.filters import compile_filters
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.chain import Chain, segments
from conduit_tasks.processors.dedupe import in_memory
from conduit_tasks.processors.result import NACKED
from conduit_tasks.record.cloudevents import view
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.topology import Pipeline, Processor


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
class _Row:
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
    from conduit_tasks.connectors.sources import source_origins

    walked = Walked({each.id: [] for each in pipeline.destinations})
    origins = [_origin(pipeline, number) for number in range(len(pipeline.sources))]
    numbers = {source.id: number for number, source in enumerate(pipeline.sources)}
    rows: list[_Row] = []
    for n, (source_id, record) in enumerate(inputs):
        number = numbers[source_id]
        record.origin = origins[number]
        rows.append(_Row(number, n, record))
    with in_memory():
        read: list[_Row] = []
        for number, source in enumerate(pipeline.sources):
            own = [row for row in rows if row.source == number]
            processors = source_origins(pipeline, source, ())[1]
            read.extend(_section(processors, own, source.node, walked.nacks))
        final = _section(pipeline.processors, read, "processors", walked.nacks)
        for destination in pipeline.destinations:
            matcher = compile_filters(destination.filters)
            wanted = [
                _Row(row.source, row.n, row.record.copy())
                for row in final
                if matcher.always or matcher.matches(view(row.record, matcher.attributes))
            ]
            out = _section(destination.processors, wanted, destination.node, walked.nacks)
            walked.arrived[destination.id] = [row.record for row in out]
    return walked


def _origin(pipeline: Pipeline, number: int) -> Origin:
    source = pipeline.sources[number]
    constant = {
        name: value for name, value in source.settings.items() if name.startswith("cloudevents.") and "{{" not in value
    }
    return Origin(pipeline.id, source.id, "", constant)


def _section(processors: Sequence[Processor], rows: list[_Row], node: str, nacks: list[Nack]) -> list[_Row]:
    for step in segments(processors) if processors else []:
        rows = _frame(step, rows, node, nacks) if isinstance(step, FrameProcessor) else _chain(step, rows, node, nacks)
    return rows


def _frame(step: FrameProcessor, rows: list[_Row], node: str, nacks: list[Nack]) -> list[_Row]:
    from conduit_tasks.cli.pipeline_test_frames import apply

    if not rows:
        return []
    # Earlier processors may have put records of several sources into another order than by number.
    origins = {row.source: row.record.origin for row in rows}
    everyone = [origins.get(number, Origin("", "", "")) for number in range(max(origins) + 1)]
    try:
        made, culprits = apply(step, [(row.source, row.n, row.record) for row in rows], everyone)
    except ConfigError as error:
        raise ConfigError(f"{node}: processor {step.id}: {error}") from error
    nacks += [Nack(node, step.id, message, NACKED) for message in culprits.values()]
    return [_Row(*each) for each in made]


def _chain(processors: Sequence[Processor], rows: list[_Row], node: str, nacks: list[Nack]) -> list[_Row]:
    chain = Chain(processors)
    try:
        results = chain.run([row.record for row in rows])
    finally:
        chain.close()
    out: list[_Row] = []
    for _, group in groupby(zip(rows, results), key=lambda each: each[0].seq):
        same = list(group)
        failed = next((result for _, result in same if result.error is not None), None)
        if failed is not None:
            # Derived records are acked or nacked together: they share the position.
            nacks.append(Nack(node, failed.processor or "", failed.error or "", failed.error_class or "processor"))
            continue
        made = [record for _, result in same for record in result.records]
        for ordinal, record in enumerate(made):
            record.ordinal = ordinal
            out.append(_Row(same[0][0].source, same[0][0].n, record))
    return out
