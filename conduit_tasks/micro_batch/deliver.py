"""`destinations.<id>`: drains sealed micro-batches in order from the destination's cursor, under its lease; a cleared
task sends again what its run had delivered.

The driver walks the micro-batches; each is delivered by one executor task, or one for each of its shards
(`delivery.parallelism`), which confirms to the broker itself. Several may be under way together (`together`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.hiding import hiding
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.errors import ConduitError, Fenced, InvariantBroken, LeaseHeld, Unavailable
from conduit_tasks.micro_batch import runs
from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.course import Ended
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.dividing import division_of, in_any_order, joined, writes_alone
from conduit_tasks.micro_batch.draining import Draining
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.recorded import note_unrecorded
from conduit_tasks.micro_batch.sending import leased, mark_settled
from conduit_tasks.micro_batch.shard_task import ShardTask
from conduit_tasks.micro_batch.size import of_micro_batch
from conduit_tasks.micro_batch.together import LaneTask, begin_group, told
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.micro_batch.waiting import LOOK
from conduit_tasks.secret_names import secret_values
from conduit_tasks.topology import Destination, Node

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.broker.state import Division
    from conduit_tasks.delivery.work import DeliveryReport
    from conduit_tasks.micro_batch.pass_plan import RunAll

log = logging.getLogger(__name__)


def deliver_destination(
    context: Context,
    destination_id: str,
    run_all: RunAll,
    *,
    run: str,
    wait: float,
    cleared: bool,
    progress: Callable[..., None],
    draining: Draining | None = None,
    parallelism: Callable[[], int] = lambda: 1,
) -> Ended:
    """Delivers what is sealed and, in a run that drains, what the other nodes of that run bring.

    `cleared`: this run's task was cleared. If it had succeeded, what it confirmed is sent again first; if it had
    failed, it merely resumes. `progress` is called for every micro-batch. `parallelism`: Spark's default. Raises
    LeaseHeld after `wait` seconds, Unavailable (the destination is down and waits), PipelineStopped, Fenced.
    """
    destination = context.pipeline.destination(destination_id)
    lease = _lease(
        context, destination, draining, wait, stays=lambda: cleared and runs.finished(context, destination.id, run)
    )
    if isinstance(lease, Ended):
        return left_to_the_next(context, destination.id, run, lease)
    marker = Marker(context, destination.node, lease.token)
    with lease, keeping(lease), marker.marking(), extend_visibility(context):
        drain = Drain(
            context, destination, lease, run_all, run, progress, marker, draining, parallelism, at_once=cleared
        )
        note_unrecorded(context, destination.id)
        if cleared and runs.finished(context, destination.id, run):
            drain.redeliver()
        ended = drain.until_caught_up()
    # The same node of the run that takes over may wait for the lease.
    context.broker.runs.ring(destination.node)
    return ended


def left_to_the_next(context: Context, destination: str, run: str, ended: Ended) -> Ended:
    """Ends a destination whose work the next run does. If cleared later, it delivers again what it had delivered."""
    _finish(context, destination, run)
    return ended


def _finish(context: Context, destination: str, run: str) -> None:
    """Notes that a run's task ends well, if it delivered anything, at an earlier attempt also."""
    if context.broker.redeliveries.confirmed_by(destination, [run])[run]:
        runs.finish(context, destination, run)


def _lease(
    context: Context, destination: Destination, draining: Draining | None, wait: float, stays: Callable[[], bool]
) -> Lease | Ended:
    """Acquires the destination's lease, waiting so many seconds for it; the run that this one takes over from may keep
    it as long as it is at work. Returns Ended if the next run has taken over meanwhile, unless this one `stays` as it
    has something of its own to do. Raises LeaseHeld."""
    node = destination.node
    if draining is None:
        return leased(context, destination, wait)
    until, step = time.monotonic() + wait, 0.0
    while True:
        try:
            return leased(context, destination, step)
        except LeaseHeld:
            if (over := draining.handed_over(node)) and not stays():
                return over
            if draining.taken_over_from(node):
                until, step = time.monotonic() + wait, 0.0
            elif (left := until - time.monotonic()) > 0:
                step = min(LOOK, left)
            else:
                raise


@dataclass
class Drain:
    """Delivery by one holder of a destination's lease; `done` counts micro-batches."""

    context: Context
    destination: Destination
    lease: Lease
    run_all: RunAll
    run: str
    progress: Callable[..., None]
    marker: Marker
    draining: Draining | None = None
    parallelism: Callable[[], int] = lambda: 1
    done: int = 0
    at_once: bool = False
    """Whether the first micro-batch is tried although the breaker is open."""
    _delivered: int = 0
    """The micro-batch that was delivered last, of this holder."""

    def until_caught_up(self) -> Ended:
        """Delivers in order from the cursor, until nothing is left or the run has lasted as long as it may."""
        broker, destination = self.context.broker, self.destination
        while True:
            if broker.deliveries.complete_unmatched(destination.id, self.lease.token):
                broker.runs.ring("delivered")
            sealed = broker.micro_batches.latest_sealed()
            state = broker.deliveries.get(destination.id)
            cursor = state.cursor
            if cursor >= sealed:
                more = self.draining.more(destination.node, sealed) if self.draining is not None else False
                if more is True:
                    continue
                _finish(self.context, destination.id, self.run)
                if isinstance(more, Ended):
                    return Ended(f"delivered {self.done} micro-batches up to {cursor}; {more.reason}")
                # Looks once more: releasing fails if anything was sealed since, so no micro-batch is left behind.
                if self.lease.release(expect_sealed=sealed):
                    return Ended(f"delivered {self.done} micro-batches up to {cursor}")
                continue
            if self.done and self.draining is not None and (leaves := self.draining.leaves(destination.node)):
                _finish(self.context, destination.id, self.run)
                left = f"{sealed - cursor} are left to the next run"
                return Ended(f"delivered {self.done} micro-batches up to {cursor}; {left}", again=leaves.again)
            # Redis may have forgotten since the last look: nothing that was confirmed may be cut away or sent again.
            self.marker.look()
            self._check_moved(cursor)
            if not self.at_once and (open := broker.breakers.waits(destination.id, destination.delivery.breaker)):
                raise Unavailable(f"{destination.node} of {self.context.pipeline.id} waits: {open}")
            self.at_once = False
            if state.division is not None and (why := writes_alone(destination)):
                self._merge(state.division, why)
                continue
            if begin_group(self.context, destination, self.lease, state, sealed, self.parallelism):
                state = broker.deliveries.get(destination.id)
            if state.division is not None and state.younger and in_any_order(destination):
                self._deliver_group(state.divisions)
            else:
                division = division_of(self.context, destination, self.lease, state, self.parallelism)
                self._deliver(cursor + 1, division=division)
            self._delivered = cursor + 1
            broker.runs.ring("delivered")

    def _check_moved(self, cursor: int) -> None:
        """Raises InvariantBroken if the micro-batch behind the cursor was delivered: it would be delivered for ever."""
        if self._delivered == cursor + 1:
            where = f"{self.destination.id} of {self.context.pipeline.id}"
            raise InvariantBroken(f"Invariant 10: {where} has all of micro-batch {cursor + 1}, and its cursor stays")

    def redeliver(self) -> None:
        """Sends again exactly what this run had confirmed, in a new epoch; live cursors and counters do not move."""
        broker = self.context.broker
        epoch = broker.redeliveries.begin(self.destination.id, self.run, self.lease.token)
        try:
            for number, _ in broker.redeliveries.ranges(self.destination.id, self.run, epoch):
                self._deliver(number, epoch)
        finally:
            mark_closed(self.context, self.destination.id, self.lease.token)

    def _merge(self, division: Division, why: str) -> None:
        """Has one task finish what several have begun, as the file names a plugin by now of which one task writes."""
        context, name, number = self.context, self.destination.id, division.micro_batch
        task = ShardTask(context.pipeline, name, number, self.lease.token, self.run, division=division)
        shards = context.broker.shards
        confirmed, voted = task.merged(context, shards.voted(name, number, division.count))
        shards.merge(name, number, self.lease.token, confirmed, voted)
        log.info("micro-batch %d, which %d tasks have begun, is finished by one: %s", number, division.count, why)

    def _deliver(self, number: int, epoch: int = 0, division: Division | None = None) -> None:
        in_driver = getattr(destination_class(self.destination.plugin), "in_driver", False)
        work = self._work(number, epoch, in_driver)
        with self._ending():
            if division is not None:
                # However small: without Spark they would go one after the other.
                task = ShardTask(**work | {"size": None}, division=division, began=time.time())
                report = joined(self.run_all(task, division.open))
            else:
                (report,) = [DeliverTask(**work)(0)] if in_driver else self.run_all(DeliverTask(**work), [0])
            try_to_mark(self.marker)
            if isinstance(report, ConduitError):
                raise report
        self._say(number, epoch, report, tasks=len(division.open) if division is not None else 0)

    def _deliver_group(self, divisions: Sequence[Division]) -> None:
        """Delivers micro-batches that are under way together (ADR 41)."""
        began = time.time()
        works = ((d, self._work(d.micro_batch) | {"size": None}) for d in divisions if d.open)
        lanes = LaneTask(tuple(ShardTask(**work, division=d, began=began) for d, work in works))
        with self._ending():
            reports, error = told(divisions, self.run_all(lanes, lanes.lanes))
            try_to_mark(self.marker)
            for number, report in reports.items():
                self._say(number, 0, report, tasks=len(lanes.lanes))
            if error is not None:
                raise error

    def _work(self, number: int, epoch: int = 0, in_driver: bool = False) -> dict[str, Any]:
        """Returns the fields of a task that delivers this micro-batch."""
        found = self.context.broker.micro_batches.get(number)
        return dict[str, Any](
            pipeline=self.context.pipeline,
            destination=self.destination.id,
            number=number,
            token=self.lease.token,
            run=self.run,
            epoch=epoch,
            # A driver cannot be forked: its session is in another process.
            isolate_poison=not in_driver and self.lease.attempts > self.destination.delivery.max_redeliveries,
            size=None if in_driver else of_micro_batch(found, self.context.pipeline),
        )

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Raises Unavailable, and notes why, if the tasks that run inside fail because the destination is down."""
        try:
            try:
                yield
            except Exception as error:
                mine = isinstance(error, ConduitError) and not isinstance(error, Fenced)
                if not mine and (said := self.context.broker.leases.gave_up(self.destination.node)):
                    raise Unavailable(said) from error
                raise
        except Unavailable as error:
            # It is only told: whether it can be kept or not, the destination is down.
            with suppress(ConduitError):
                said = hiding(secret_values([self.destination.settings]))(str(error))
                self.context.broker.outages.note(self.destination.id, self.lease.token, said, self.context.owner)
            raise

    def _say(self, number: int, epoch: int, report: DeliveryReport, *, tasks: int) -> None:
        """Tells of a micro-batch that was delivered."""
        self.done += 1
        # There was progress: poison is isolated only in a micro-batch that killed its worker repeatedly.
        self.lease.attempts = 1
        counts = {name: n for name, n in asdict(report.counts).items() if name != "matched"}
        if tasks:
            counts["tasks"] = tasks
        self.progress(micro_batch=number, epoch=epoch, seconds=round(report.seconds, 3), **counts)


def mark_closed(context: Context, destination: str, token: int) -> None:
    """Marks the dead letters in the store that are none any more, because their records were redelivered. If that
    fails, the next redrive does it."""
    try:
        mark_settled(context, destination, token, Marker(context, Node.destination(destination), token))
    except ConduitError as error:
        log.warning("dead letters that were delivered again are marked by the next redrive: %s", error)
