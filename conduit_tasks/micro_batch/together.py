"""Several micro-batches of one destination under way at once, where their order is nobody's concern (ADR 41).

A group is divided in one step, each of its micro-batches among the same lanes. One Spark job delivers it: its task of a
lane delivers the shards of that lane, the oldest first, and waits for no other task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.state import Division
from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.delivery.work import DeliveryReport
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch import dividing
from conduit_tasks.micro_batch.dividing import joined
from conduit_tasks.micro_batch.numbering import matched_of
from conduit_tasks.micro_batch.size import Size
from conduit_tasks.pipeline.parallel import together
from conduit_tasks.topology import TOGETHER

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.broker.state import DeliveryState
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.micro_batch.shard_task import ShardTask
    from conduit_tasks.topology import Destination

ENOUGH = 10_000
"""Records per task with which a group is large enough: what is lost at its end is little then, and the driver is asked
again what to do next (a changed file, a run that hands over)."""

Answer = tuple[list[tuple[int, DeliveryReport]], ConduitError | None]
"""A lane's answer: reports of the shards that it delivered, with the numbers of their micro-batches; why it
ended before the last."""


def begin_group(  # noqa: PLR0917 - what a holder of the lease knows
    context: Context,
    destination: Destination,
    lease: Lease,
    state: DeliveryState,
    sealed: int,
    parallelism: Callable[[], int] = lambda: 1,
) -> bool:
    """Divides the micro-batches behind the cursor, up to `sealed`, as a group. Returns False if they go one after the
    other: the destination is not of those (`parallel.together`), there is one, something is begun already, or they are
    so few records that one task delivers them. Raises Fenced, PipelineStopped.

    Costs nothing where the file asks for one task or keeps an order. `parallelism`: as in `dividing.division_of`.
    """
    broker, first = context.broker, state.cursor + 1
    connector = destination_class(destination.plugin)
    begun = bool(state.divisions or state.confirmed or state.group[1] >= first)
    if sealed <= first or begun or not together(destination, connector) or broker.redrives.parked(destination.id):
        return False
    if dividing.begun_alone(context, destination, first):
        return False
    most, count = destination.delivery.most_tasks, 1
    found = broker.shards.waiting(destination.id, range(first, min(sealed, state.cursor + TOGETHER) + 1))
    auto, in_batches = destination.delivery.parallelism == "auto", issubclass(connector, BatchDestination)
    if (auto or in_batches) and Size(sum(of.total for of in found), sum(of.bytes for of in found)).small():
        # One process writes them as fast, without Spark, and may keep its clients (ADR 45).
        return False
    if auto:
        most = max(1, min(most, parallelism()))
    while count < len(found) and sum(of.matched for of in found[:count]) < most * ENOUGH:
        count += 1
    found = found[:count]
    lanes = min(most, sum(of.matched for of in found) // dividing.LEAST)
    if count == 1 or lanes < 2 or dividing.writes_alone(destination):
        return False
    # As it is sealed: what the broker says of a destination that is being renamed may be less.
    matched = [matched_of(context, context.spool.read_sealed(of.manifest), destination) for of in found]
    group, at = list[Division](), 0
    for number, wanted in enumerate(matched, first):
        used = min(lanes, max(1, wanted // dividing.LEAST)) if wanted else 0
        group.append(Division.begun(number, "none", lanes, wanted, at, used))
        at = (at + used) % lanes
    return bool(matched[0]) and broker.shards.together(destination.id, lease.token, group)


@dataclass(frozen=True)
class LaneTask:
    """Delivery of the shards of one lane per call, the oldest first; picklable. `tasks`: of the micro-batches of a
    group that are not whole, the oldest first."""

    tasks: tuple[ShardTask, ...]
    size: Size | None = None

    def __call__(self, lane: Any) -> Answer:
        done = list[tuple[int, DeliveryReport]]()
        for task in self.tasks:
            if lane in task.division.open:
                report = task(lane)
                if isinstance(report, ConduitError):
                    return done, report
                done.append((task.number, report))
        return done, None

    @property
    def lanes(self) -> list[int]:
        """Lanes with a shard that is not whole."""
        return sorted({shard for task in self.tasks for shard in task.division.open})


def told(
    divisions: Sequence[Division], answers: Sequence[Answer]
) -> tuple[dict[int, DeliveryReport], ConduitError | None]:
    """Returns what the lanes delivered of each micro-batch that is whole by that, and the error that says most."""
    of: dict[int, list[DeliveryReport]] = {}
    for done, _ in answers:
        for number, report in done:
            of.setdefault(number, []).append(report)
    errors = [error for _, error in answers if error is not None]
    said = joined(errors) if errors else None
    reports = {d.micro_batch: joined(of.get(d.micro_batch, [])) for d in divisions}
    whole = {d.micro_batch for d in divisions if len(of.get(d.micro_batch, [])) == len(d.open)}
    found = {m: report for m, report in reports.items() if m in whole and isinstance(report, DeliveryReport)}
    return found, said if isinstance(said, ConduitError) else None
