"""Division of a live micro-batch among several tasks of a destination: whether, into how many, and what they answer
together (ADR 27). A cleared run, a redrive and a replay are sent by one task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from conduit_tasks.connectors.connection import resolved
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.delivery.shard import partitions
from conduit_tasks.delivery.work import DeliveryReport, add
from conduit_tasks.errors import ConduitError, Fenced, Unavailable
from conduit_tasks.micro_batch.numbering import matched_of, once_by_shards
from conduit_tasks.micro_batch.size import of_micro_batch
from conduit_tasks.pipeline.parallel import of_class, one_task

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.broker.state import DeliveryState, Division
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.manifest import SealedManifest
    from conduit_tasks.topology import Destination

log = logging.getLogger(__name__)

LEAST = 100
"""The least records per task: for fewer, its start costs more than it gains."""


def division_of(
    context: Context,
    destination: Destination,
    lease: Lease,
    state: DeliveryState,
    parallelism: Callable[[], int] = lambda: 1,
) -> Division | None:
    """Returns the division of the micro-batch behind the cursor, fixed in the broker; None: one task delivers it.

    One that was begun divided, or undivided, is finished so (see `writes_alone`, `begun_alone`). Costs nothing where
    the file asks for one task. `parallelism`: Spark's default, asked if the file leaves the number to it (`auto`).
    Raises Fenced, PipelineStopped; ConfigError, ConnectionMissing if the destination's Airflow connection cannot be
    had.
    """
    if state.division is not None:
        return state.division
    delivery = destination.delivery
    if delivery.parallelism == 1 or state.confirmed or one_task(destination, destination_class(destination.plugin)):
        return None
    broker, number = context.broker, state.cursor + 1
    # Keys that wait from before: later records of them have to be seen by one task.
    if broker.redrives.parked(destination.id) or begun_alone(context, destination, number):
        return None
    found = broker.micro_batches.get(number)
    auto = delivery.parallelism == "auto"
    if auto and of_micro_batch(found, context.pipeline).small():
        # Without Spark, one process is sooner done than several are begun.
        return None
    manifest = context.spool.read_sealed(found.manifest)
    matched = matched_of(context, manifest, destination)
    count = _tasks(delivery.most_tasks, delivery.order_by, manifest, matched)
    if auto and count > 1:
        count = max(1, min(count, parallelism()))
    if count == 1 or _said_alone(destination):
        return None
    return broker.shards.divide(destination.id, number, lease.token, by=delivery.order_by, count=count, matched=matched)


def begun_alone(context: Context, destination: Destination, number: int) -> bool:
    """Returns whether one task may have written rows of a micro-batch that nothing else says: with effectively-once it
    takes their numbers before the first write, and several tasks know nothing of its mark (ADR 48)."""
    once = once_by_shards(destination, destination_class(destination.plugin))
    return once and context.broker.sending.fixed(destination.id, number)


def writes_alone(destination: Destination) -> str:
    """Returns why one task alone can write, by the plugin and the settings that the file names by now, and by what its
    Airflow connection gives: it may be one of SQLite, which the file does not say; "" if several can. Raises
    ConfigError, ConnectionMissing."""
    connector = destination_class(destination.plugin)
    return of_class(connector, resolved(connector.spec, destination.settings))


def _said_alone(destination: Destination) -> bool:
    """Returns whether one task `writes_alone`, and logs why: `explain` knows the file only."""
    if why := writes_alone(destination):
        asked = destination.delivery.parallelism
        log.warning("one task delivers to '%s', though parallelism is %s: %s", destination.id, asked, why)
    return bool(why)


def in_any_order(destination: Destination) -> bool:
    """Returns whether the micro-batches of a group may still be written in any order: the file may say `mode: upsert`
    meanwhile. If not, they are finished one after the other."""
    return bool(destination_class(destination.plugin).in_any_order(destination.settings))


def _tasks(most: int, by: str, manifest: SealedManifest, matched: int) -> int:
    possible = partitions(manifest) if by == "partition" else most
    return max(1, min(most, possible, matched // LEAST))


def joined(answers: Sequence[DeliveryReport | ConduitError]) -> DeliveryReport | ConduitError:
    """Returns what several tasks answered as one answer: the sum of their reports, or the error that says most: that a
    destination is down, or that a task was fenced, may follow from another task's error."""
    errors = [answer for answer in answers if isinstance(answer, ConduitError)]
    if errors:
        return min(errors, key=lambda error: isinstance(error, Fenced) + 2 * isinstance(error, Unavailable))
    report = DeliveryReport()
    for answer in answers:
        assert isinstance(answer, DeliveryReport)
        counts, flushes = add(report.counts, answer.counts), report.flushes + answer.flushes
        report = DeliveryReport(counts, flushes, max(report.seconds, answer.seconds))
    return report
