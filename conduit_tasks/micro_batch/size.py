"""Size of a micro-batch's work, as far as it is known beforehand, whether it is small, and Spark's start ahead of work
that is not.

Spark costs 45 to 300 ms for each job, and a JVM where there is none. Small work does without: a child process of the
node's application does it (`spark.local`). It is one process, so work is small only if dividing it would gain less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.connectors.registry import destination_class, source_class
from conduit_tasks.processors.chain import has_frames
from conduit_tasks.settings import settings
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.state import MicroBatch
    from conduit_tasks.connectors.base import Slice
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Limits, Pipeline


@dataclass(frozen=True)
class Size:
    """Records and bytes (of files or messages, as they are read); None: not known beforehand."""

    records: int | None = None
    bytes: int | None = None

    def small(self, pieces: int = 1) -> bool | None:
        """Returns whether work of this size, in so many pieces, is small. If nothing is known of the size, work of one
        piece is small, because Spark cannot divide it either; work of more pieces is not."""
        records, limit = settings().small_records, settings().small_bytes
        if not records or not limit:
            return False
        if self.records is None and self.bytes is None:
            return pieces == 1
        return (self.records or 0) <= records and (self.bytes or 0) <= limit


def of_slices(slices: Sequence[Slice], limits: Limits | None = None) -> Size:
    """Returns the size of slices before they are read. `limits`: of the micro-batch; they bound a source that does not
    say what its slices hold."""
    if all(s.records is not None or s.bytes is not None for s in slices):
        known = [s.records for s in slices if s.records is not None]
        return Size(sum(known) if known else None, sum(s.bytes or 0 for s in slices) or None)
    records = limits.records if limits is not None else None
    return Size(records, None) if records is not None and records <= settings().small_records else Size()


def of_micro_batch(found: MicroBatch, pipeline: Pipeline) -> Size:
    """Returns the size of a micro-batch for what comes after its sources: as stored, else as planned."""
    if found.state != "open":
        return Size(found.total, found.bytes)
    sizes = []
    for source, slices in found.slices.items():
        stage = found.stages.get(Node.source(source))
        planned = of_slices(slices, pipeline.micro_batch)
        sizes.append(planned if stage is None else Size(stage.read - stage.filtered - stage.nacked, stage.bytes))
    return Size(*(_sum([getattr(size, name) for size in sizes]) for name in ("records", "bytes")))


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def always_in_spark(pipeline: Pipeline, node: Node) -> bool:
    """Returns whether the node needs Spark's SQL session, however small its work is."""
    if node.kind == "sources":
        source = pipeline.source(node.id)
        return source_class(source.plugin).in_driver or has_frames(source.processors)
    if node.kind == "destinations":
        return bool(getattr(destination_class(pipeline.destination(node.id).plugin), "in_driver", False))
    return has_frames(pipeline.processors)


@dataclass
class Foresight:
    """Begins Spark's start as soon as work is in sight that is not small, so that the work waits less for it.

    `begin`: begins it and does not wait for it; None if there is nothing to begin.
    """

    context: Context
    node: Node
    begin: Callable[[], None] | None

    def look(self, found: MicroBatch | None = None) -> None:
        """Looks at what the node needs and, unless `found` was read a moment ago, at what is being read for it. Costs
        nothing once Spark's start was begun."""
        if self.begin is None:
            return
        if always_in_spark(self.context.pipeline, self.node) or self._large(found):
            self.begin()
            self.begin = None

    def _large(self, found: MicroBatch | None) -> bool:
        if self.node.kind == "sources":
            return False  # what it reads next is begun at once
        found = found or self.context.broker.micro_batches.unsealed()
        return found is not None and not of_micro_batch(found, self.context.pipeline).small()
