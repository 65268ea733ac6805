"""`plan`: returns the unsealed micro-batch or opens the next one, puts a changed file in force, leaves out sources that
fail, and names what is left to deliver or ack."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conduit_tasks.broker.in_flight import in_flight as in_flight_to
from conduit_tasks.connectors.capabilities import Held
from conduit_tasks.connectors.plugins import same_plugin
from conduit_tasks.connectors.registry import kept_for, source_class
from conduit_tasks.errors import ConfigError, Fenced, PipelineStopped
from conduit_tasks.micro_batch.asking import Asked, ask, failed_to_read
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.course import before_destinations, destination_nodes
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.gone import forget_gone
from conduit_tasks.micro_batch.room import full, room_for
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.pipeline.schedule import IDLE, is_continuous
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

NODE = "plan"

ENDING = 5.0
"""Seconds before its limit from which on a run is taken to be ending."""
SLICES = 5_000
"""Limit of slices in a micro-batch: they are one command to Redis (`open`, `stage`, `begin_ack`)."""


@dataclass(frozen=True)
class PlanResult:
    """Result of `plan`. `work` False: nothing to read, deliver, ack or collect; `reason` says why, for the log."""

    micro_batch: int | None
    work: bool
    reason: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Source → reason why it was left out, in whole or in part."""
    idle: bool = False
    """Whether there is nothing to do but to wait for more."""


def plan_run(
    pipeline_id: str,
    run_id: str,
    limits: Mapping[str, int] | None = None,
    *,
    by_hand: bool = False,
    drain_limit: float = 0.0,
) -> PlanResult:
    """Plans one run. Under `@continuous` the run lasts: it waits for more, even if there is nothing to do; but not a
    run that was started `by_hand` or has `limits`.

    `drain_limit`: seconds that a run lasts at most. If it is given and nothing has come since the run under way began,
    that one goes on in place of this one, and its limit counts from now on. 0: this run begins in any case.


    `limits`: `max-records` that this run may read at most (a param of a manual run; 0: it only delivers); a micro-batch
    of it holds no more than that, nor than the pipeline's own limit.

    Raises PipelineStopped with the stored first error if the pipeline is degraded (C16), StateLost if Redis has lost
    its state (X7).
    """
    with opened(pipeline_id, run_id) as context:
        remember(context)
        continuous = is_continuous(context.pipeline)
        lasts = continuous and not by_hand and limits is None
        if continuous and not lasts and (other := _lasting(context)):
            return PlanResult(None, False, f"run {other} is under way and lasts: it reads and delivers what comes")
        while True:
            try:
                with extend_visibility(context, again=False):
                    found = plan(context, limits, lasts=lasts)
            except Fenced:
                # Another run opened and sealed the next micro-batch meanwhile: what there is to do has changed.
                continue
            if lasts and found.idle and (other := _goes_on(context, run_id, drain_limit)):
                return PlanResult(None, False, f"nothing has come since run {other} began: it goes on")
            if found.work:
                most = (limits or {}).get("max-records")
                context.broker.runs.begin(run_id, most, records_read(context), moved(context), lasts=lasts)
                for source, why in found.left_out.items():
                    context.broker.runs.tell_left_out(run_id, source, why)
            return found


def _lasting(context: Context) -> str:
    """Returns the run that lasts and reads what comes; empty if there is none."""
    now, _ = context.broker.runs.latest()
    reads = now is not None and now.lasts and all(now.at_work(s.node) for s in context.pipeline.sources)
    return now.run if now is not None and reads else ""


def _goes_on(context: Context, run_id: str, limit: float) -> str:
    """Has the run that lasts go on in place of this one, if nothing has come since it began, all its tasks are at work,
    and none of them may have found its limit reached. Returns that run; empty if this one is to begin."""
    runs, pipeline = context.broker.runs, context.pipeline
    now, _ = runs.latest()
    if now is None or now.run == run_id or not now.lasts or now.again or any(now.left_out.values()):
        return ""
    young = now.now - now.counted < limit - ENDING and now.now - now.since + limit <= IDLE
    nodes = [*before_destinations(pipeline), *destination_nodes(pipeline)]
    at_work = all(map(now.takes_over, nodes)) and all(now.at_work(Node.ack(s.id)) for s in pipeline.sources)
    idle = young and at_work and now.moved == moved(context)
    return now.run if idle and runs.go_on(now.run) else ""


def records_read(context: Context) -> int:
    """Returns the number of records that the sources have read, of everything sealed."""
    totals = context.broker.micro_batches.totals()
    return sum(totals.get(f"{s.node}/read", 0) for s in context.pipeline.sources)


def moved(context: Context) -> int:
    """Returns the progress of the pipeline as one number: the same as long as nothing was sealed or delivered."""
    return sum(context.broker.deliveries.cursors([d.id for d in context.pipeline.destinations]))


def plan(context: Context, limits: Mapping[str, int] | None = None, *, lasts: bool = False) -> PlanResult:
    """Plans, see `plan_run`. `lasts`: there is work, if only to wait for more."""
    broker, pipeline = context.broker, context.pipeline
    status = broker.lifecycle.status()
    if status.status == "degraded":
        error = status.error
        said = f"{error.node}: {error.error}" if error else "no error is stored"
        raise PipelineStopped(
            f"pipeline {pipeline.id} is degraded. First error: {said}. "
            f"Fix the cause, then `conduit start {pipeline.id}`."
        )
    if status.status == "stopped":
        return PlanResult(None, False, f"pipeline {pipeline.id} is stopped; `conduit start {pipeline.id}` starts it")
    changed = _take_over(context)
    forget_gone(context)
    unsealed = broker.micro_batches.unsealed()
    if unsealed is not None:
        # Nothing of it is sealed, so nothing is final for its sources yet: a changed file reads it again (C16), and a
        # source that could not be read is taken out of it for the others.
        failed = failed_to_read(context, unsealed)
        if failed or unsealed.config != pipeline.digest():
            _restage(context, unsealed, without=failed)
            unsealed = broker.micro_batches.unsealed()
    if unsealed is not None:
        return PlanResult(unsealed.number, True, f"micro-batch {unsealed.number} is not sealed yet: going on with it")
    if status.status == "stopping":
        pending = in_flight(context)
        return PlanResult(None, bool(pending), pending or "stopped: nothing is left in flight")
    next_one = open_next(context, limits) if _may_read(limits) else Next(None, "nothing is left to deliver")
    if next_one.number is not None:
        return PlanResult(next_one.number, True, next_one.reason, next_one.asked.told())
    pending = outstanding(context)
    names = [d.id for d in pipeline.destinations]
    if not pending and broker.collection.due([s.id for s in pipeline.sources], names, kept_for(pipeline)):
        pending = "micro-batches to collect"
    held = held_sources(pipeline) if _may_read(limits) else []
    if pending or lasts or held:
        asked = f"{', '.join(held)} is asked by its own node" if held else f"{next_one.reason}: the run waits for more"
        said = pending or asked
        asked_well = next_one.looked and not next_one.asked.failed and not next_one.asked.waiting
        return PlanResult(None, True, said, next_one.asked.told(), idle=asked_well and not pending and not changed)
    for failure in next_one.asked.failed.values():
        # There is nothing else to do that the failure would hold up.
        raise failure
    return PlanResult(None, False, next_one.reason)


def held_sources(pipeline: Pipeline) -> list[str]:
    """Returns the sources that only their own node can ask (`capabilities.Held`)."""
    return [s.id for s in pipeline.sources if issubclass(source_class(s.plugin), Held)]


def _may_read(limits: Mapping[str, int] | None) -> bool:
    return (limits or {}).get("max-records") != 0


@dataclass(frozen=True)
class Next:
    """Next micro-batch; `number` is None if none was opened. `reason` says what is in it, or why there is none.

    `looked` False: the sources were not asked; `budget`: they were not, because of what is in flight and being
    delivered; `recovering`: a source failed, and it is too early to try it again; `asked`: answers of the sources, and
    errors of those that could not answer.
    """

    number: int | None
    reason: str
    looked: bool = True
    budget: bool = False
    recovering: bool = False
    asked: Asked = field(default_factory=Asked)


def open_next(context: Context, limits: Mapping[str, int] | None = None) -> Next:
    """Opens the next micro-batch, if nothing is unsealed and a source has something new within the limits.

    Raises Fenced if another run opened one meanwhile. A source that cannot be planned is left out.
    """
    broker, pipeline = context.broker, context.pipeline
    room = room_for(context, limits)
    if room is None:
        said = _shut(context)
        return Next(None, said or "the lag budget is used up", looked=False, budget=not said)
    expect, at = broker.micro_batches.latest_sealed() + 1, broker.access.now()
    asked = ask(context, room, expect, SLICES)
    if not any(asked.slices.values()):
        if len(asked.well) == len(pipeline.sources):
            broker.positions.emptied(at, expect - 1)
        said = f"recovering: {'; '.join(map(str, asked.waiting))}" if asked.waiting else "nothing new"
        return Next(None, said, recovering=bool(asked.waiting or asked.failed), asked=asked)
    # Invariant 3: boundaries are durable before anything is read.
    number = broker.micro_batches.open(asked.slices, pipeline.digest(), expect, processors=bool(pipeline.processors))
    counted = [s.records for of in asked.slices.values() for s in of]
    known = [n for n in counted if n is not None]
    said = f"{sum(known):,} records" if len(known) == len(counted) else f"{len(counted)} slices"
    return Next(number, f"micro-batch {number}: {said}", asked=asked)


def _shut(context: Context) -> str:
    """Returns why nothing may be read until an operator acts, in words; empty if it is only the lag budget."""
    if why := full(context):
        return why
    if halted := halted_destinations(context):
        said = f"{', '.join(halted)} stopped, and the lag budget is used up"
        return f"{said}; `conduit start {context.pipeline.id} --destination ID` goes on"
    return ""


def _restage(context: Context, unsealed: MicroBatch, *, without: Collection[str]) -> None:
    """Has the unsealed micro-batch read by the file as it is now, `without` some of its sources, whose positions go
    back. If none of its sources is left, it ends here, sealed and empty."""
    broker, pipeline = context.broker, context.pipeline
    names, digest = [s.id for s in pipeline.sources if s.id not in without], pipeline.digest()
    if any(name in unsealed.slices for name in names):
        broker.micro_batches.restage(names, digest, processors=bool(pipeline.processors))
        return
    from conduit_tasks.spool.manifest import SealedManifest

    with broker.leases.acquire("seal", context.owner, wait=5.0) as lease:
        # Every sealed number has a manifest: a rebuild takes a number without one for lost (X7).
        path = context.spool.write_sealed(
            SealedManifest(
                pipeline=pipeline.id,
                micro_batch=unsealed.number,
                token=lease.token,
                config=digest,
                slices=[],
                bases=[],
                total=0,
                files=[],
                matched={},
                filtered=0,
                nacked=0,
                sealed_at=time.time(),
            )
        )
        broker.micro_batches.restage([], digest, manifest=path)


def _take_over(context: Context) -> bool:
    """Puts the file as it is now in force; returns whether it has changed. Logs what it leaves behind, as `conduit
    plan` may not have been asked. Raises ConfigError if a source became another one, because its positions would be
    read wrongly."""
    broker, pipeline = context.broker, context.pipeline
    before = broker.versions.in_force()
    if before is not None and before.digest != pipeline.digest():
        was = {s["id"]: s["plugin"] for s in before.topology["sources"]}
        for s in pipeline.sources:
            if not same_plugin(was.get(s.id, s.plugin), s.plugin):
                raise ConfigError(
                    f"{pipeline.file}: source {s.id} of {pipeline.id} was of plugin {was[s.id]} and is of {s.plugin} "
                    "now: its positions mean nothing to that. Give it another id, or put the plugin back"
                )
    changed = broker.versions.adopt(pipeline, context.owner)
    if changed and before is not None:
        now = {d.id for d in pipeline.destinations}
        for d in before.topology["destinations"]:
            if d["id"] not in now and (waiting := in_flight_to(broker, d["id"])).micro_batches:
                log.warning(
                    "%s: destination %s has left the file with %s not delivered; put it back, or `conduit apply` with "
                    "--rename %s=NEW",
                    pipeline.id,
                    d["id"],
                    waiting,
                    d["id"],
                )
    return changed


def outstanding(context: Context) -> str:
    """Returns what is left to deliver or ack, in words, or "". A stopped destination has nothing to do."""
    broker, pipeline = context.broker, context.pipeline
    sealed = broker.micro_batches.latest_sealed()
    halted = halted_destinations(context)
    behind = [d.id for d in pipeline.destinations if d.id not in halted and broker.deliveries.get(d.id).cursor < sealed]
    if behind:
        return f"behind: {', '.join(behind)}"
    if untold := [d.id for d in pipeline.destinations if d.on_delivered and steps_behind(context, d.id)]:
        return f"steps not called: {', '.join(untold)}"
    from conduit_tasks.connectors.registry import ack_on

    names = [d.id for d in pipeline.destinations]
    unacked = [s.id for s in pipeline.sources if broker.acks.due(s.id, names, ack_on(s))]
    if unacked:
        return f"not acked: {', '.join(unacked)}"
    from conduit_tasks.broker.acks import MESSAGES
    from conduit_tasks.micro_batch.messages import listened_to

    if broker.acks.due(MESSAGES, names, "delivered") and listened_to(context):
        return "handlers are not told yet"
    return ""


def steps_behind(context: Context, destination: str) -> bool:
    """Returns whether the destination has confirmed micro-batches for which its step was not called."""
    key = context.broker.keys.destination(destination)
    ((cursor, told),) = context.broker.access.read(("HMGET", key, "cursor", "told"))
    return told is not None and int(cursor or 0) > int(told)


def halted_destinations(context: Context) -> list[str]:
    """Returns the destinations that are stopped, each alone (X1)."""
    return [d.id for d in context.pipeline.destinations if context.broker.deliveries.get(d.id).status == "stopped"]


def in_flight(context: Context) -> str:
    """Returns what is unsealed, undelivered or unacked, in words; ends a graceful stop if nothing is left (C3, C15)."""
    unsealed = context.broker.micro_batches.unsealed()
    left = f"micro-batch {unsealed.number} is not sealed" if unsealed else outstanding(context)
    if not left and context.broker.lifecycle.stored_status() == "stopping":
        context.broker.lifecycle.stopped()
    return left
