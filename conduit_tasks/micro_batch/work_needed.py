"""Decides whether a node needs a Spark application before a JVM is started; does cheap work here, without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass

from conduit_tasks.errors import LeaseHeld, Outdated
from conduit_tasks.micro_batch import runs
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.course import Ended
from conduit_tasks.micro_batch.draining import Draining
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.plan import held_sources
from conduit_tasks.micro_batch.process import NODE as PROCESSORS
from conduit_tasks.micro_batch.recovery import left_alone
from conduit_tasks.micro_batch.seal import seal_if_complete
from conduit_tasks.topology import Node

POLL = 0.25
"""Seconds between two looks at a lease that is held."""


@dataclass(frozen=True)
class WorkNeeded:
    """Decision for a node. `submit`: it needs a Spark application. If not, `done` tells finished work from no work."""

    submit: bool
    reason: str
    done: bool = False
    recovering: bool = False
    """Whether there is work, but it is too early to try it again."""
    over: bool = False
    """Whether nothing that other nodes of the run bring changes the decision."""
    again: bool = False
    """Whether there is more, for a run that follows at once."""


def awaited(  # noqa: PLR0911 - one case each
    pipeline_id: str, node: str, run_id: str, *, limit: float, cleared: bool = False
) -> WorkNeeded:
    """Decides as `needed` does, and waits while other nodes of this run are at work on what has to come before. A node
    whose work is still being read is told to start: it waits itself, ready."""
    done = False
    while True:
        with opened(pipeline_id, run_id) as context:
            draining = Draining(context, run_id, limit)
            try:
                work = needed(context, node, run_id, cleared=cleared, ready=draining.lasts())
            except Outdated as error:
                ended = draining.outdated(error)
                return WorkNeeded(False, ended.reason, done=done, again=ended.again)
            done = done or work.done
            if work.submit:
                return work
            if work.recovering or work.over:
                lingers = draining.lingers(node)
                if lingers is True:
                    continue
                return WorkNeeded(False, lingers.reason, done=done) if lingers else work
            if asks_itself(context, node):
                return WorkNeeded(True, "what is new, only its own application can ask")
            if draining.lasts():
                return WorkNeeded(True, "the run lasts: ready for what comes", done=done)
            if done:
                context.broker.runs.ring(node)
            more = _wait(draining, context, Node(node))
        if isinstance(more, Ended):
            return WorkNeeded(False, more.reason, done=done, recovering=more.recovering, again=more.again)
        if more:
            return WorkNeeded(True, more)


def asks_itself(context: Context, node: str) -> bool:
    """Returns whether a node has to be started to learn what is new: that of a source which it holds."""
    if Node(node).kind != "sources" or context.broker.lifecycle.stored_status() != "running":
        return False
    return Node(node).id in held_sources(context.pipeline)


def _wait(draining: Draining, context: Context, node: Node) -> str | Ended:
    """Waits for work. Returns "" if it is to be looked at again, a reason if an application is to be ready for it,
    Ended if none will come."""
    if node.kind == "sources":
        found = draining.slices(node.id)
        return found if isinstance(found, Ended) else ""
    if node.kind == "processors":
        staged = draining.staged(early=True)
        return staged if isinstance(staged, Ended) else f"micro-batch {staged.number} is being read"
    cursor = context.broker.deliveries.get(node.id).cursor
    # If a trigger may want nothing of the micro-batch, no JVM is started before that is known.
    early = not context.pipeline.destination(node.id).filters
    more = draining.more(node, cursor, early=early)
    if isinstance(more, Ended):
        return more
    if not more:
        return Ended("nothing to deliver")
    return "" if context.broker.micro_batches.latest_sealed() > cursor else "a micro-batch is being read"


def needed(context: Context, node: str, run_id: str, *, cleared: bool = False, ready: bool = False) -> WorkNeeded:
    """Looks at the broker for work of `sources.<id>`, `processors` or `destinations.<id>`.

    If another run holds the node's lease, waits until that holder is done or its lease has lapsed, one lease time at
    most: a JVM is not started only to wait. A node that failed is left alone until its delay is over. `cleared`: the
    task was cleared, so it is tried now; if it had succeeded, it delivers again. `ready`: the node is started although
    the lease is held, as its holder goes on until the node is ready.
    """
    # A Redis that was started again since the plan may have forgotten what this run did.
    remember(context)
    look = _destination if Node(node).kind == "destinations" else _before_fan_out
    first = context.broker.leases.held_for(node)
    give_up = time.monotonic() + first
    while True:
        work = look(context, node, run_id, cleared)
        if work.submit and not cleared and (failing := left_alone(context, node)):
            return WorkNeeded(False, f"recovering: {failing}", recovering=True)
        left = context.broker.leases.held_for(node) if work.submit and not ready else 0.0
        if not left:
            return work
        if time.monotonic() >= give_up:
            return WorkNeeded(False, f"another run works on {node}, and goes on with what is there")
        time.sleep(min(POLL, left))


def _before_fan_out(context: Context, node: str, run_id: str, cleared: bool) -> WorkNeeded:
    micro_batch = context.broker.micro_batches.unsealed()
    if micro_batch is None:
        return WorkNeeded(False, "nothing is unsealed")
    context.same_version(micro_batch)
    open_nodes = micro_batch.missing
    if not open_nodes:
        return WorkNeeded(False, seal_if_complete(context, micro_batch.number), done=True)
    if node not in open_nodes:
        return WorkNeeded(False, f"{node} has nothing to do in micro-batch {micro_batch.number}")
    if node == PROCESSORS and open_nodes != [PROCESSORS]:
        return WorkNeeded(False, f"waiting for {', '.join(n for n in open_nodes if n != PROCESSORS)}")
    return WorkNeeded(True, f"micro-batch {micro_batch.number}")


def _destination(context: Context, node: str, run_id: str, cleared: bool) -> WorkNeeded:
    broker, destination = context.broker, Node(node).id
    status = broker.lifecycle.stored_status()
    if status in ("stopped", "degraded"):
        return WorkNeeded(False, f"the pipeline is {status}")
    if broker.deliveries.get(destination).status == "stopped":
        start = f"`conduit start {context.pipeline.id} --destination {destination}`"
        return WorkNeeded(False, f"{destination} is stopped; {start} starts it", over=True)
    if cleared and runs.finished(context, destination, run_id):
        return WorkNeeded(True, "cleared after it had succeeded: what this run delivered goes again")
    try:
        completed = broker.deliveries.complete_unmatched(destination)
    except LeaseHeld:
        completed = 0
    cursor, sealed = broker.deliveries.get(destination).cursor, broker.micro_batches.latest_sealed()
    if cursor >= sealed:
        if context.broker.redeliveries.confirmed_by(destination, [run_id])[run_id]:
            # Its driver died, and its executor (at a Connect server, in a cluster) finished the work.
            runs.finish(context, destination, run_id)
            return WorkNeeded(False, "an earlier attempt of this run has delivered everything", done=True)
        said = f"{completed} micro-batches had nothing for it" if completed else "nothing to deliver"
        return WorkNeeded(False, said, done=bool(completed))
    breaker = None if cleared else context.pipeline.destination(destination).delivery.breaker
    open = broker.breakers.waits(destination, breaker)
    said = f"{destination} waits: {open}" if open else f"micro-batches {cursor + 1} to {sealed}"
    return WorkNeeded(open is None, said, done=bool(completed), over=open is not None)
