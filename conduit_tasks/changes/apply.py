"""Applies a changed file, if all that would lose or double events is decided: drains and stops the pipeline, moves its
state as the file says, and starts it again.

Every step may be done twice. A crash between any two leaves a pipeline that is stopped, or unchanged; the same command
again finishes, and starts the pipeline if it was running before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from conduit_tasks.broker.in_flight import in_flight
from conduit_tasks.changes.plan import Change, Plan, plan_change
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.micro_batch.checkpoint import look
from conduit_tasks.micro_batch.context import open_broker, open_spool, opened
from conduit_tasks.micro_batch.forgotten import state_lost
from conduit_tasks.operate import control
from conduit_tasks.pipeline.clashes import Declared
from conduit_tasks.pipeline.load import load_file, load_folder
from conduit_tasks.settings import settings
from conduit_tasks.spool.checkpoint import Checkpoint
from conduit_tasks.topology import INDEX_PIPES, Node, Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.spool.spool import Spool

OWNER = "conduit apply"
"""Holder of the leases under which marks are written here, and who puts a version in force."""

POLL = 0.2
"""Seconds between two looks at leases that are still held."""


class Undecided(ConfigError):
    """Change that loses or doubles events unless it is decided about; the message names the options."""


@dataclass(frozen=True)
class Decisions:
    """Decisions of the operator. `rename`: destination, old id → new; `drop`: ids that may leave with work outstanding,
    and may come back; `forget`: ids that left before, whose state is deleted for good; `yes`: the outstanding work of
    dropped and forgotten ids is given up."""

    rename: Mapping[str, str] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()
    forget: frozenset[str] = frozenset()
    yes: bool = False


def check(pipeline: Pipeline, plan: Plan, broker: Broker, decisions: Decisions) -> None:
    """Raises ConfigError for an option that fits nothing, Undecided if one is missing."""
    now = {d.id for d in pipeline.destinations}
    for old, new in decisions.rename.items():
        if new not in now or old in now:
            raise ConfigError(
                f"--rename {old}={new}: in {pipeline.file} there is to be a destination {new}, and none {old}"
            )
        if old in decisions.drop:
            raise ConfigError(f"--rename {old}={new} and --drop {old}: one of the two")
    if len(set(decisions.rename.values())) < len(decisions.rename):
        raise ConfigError("--rename: two destinations cannot become one")
    here = {*now, *(s.id for s in pipeline.sources)}
    if staying := sorted(here & (decisions.drop | decisions.forget)):
        raise ConfigError(f"--drop or --forget {staying[0]}: {pipeline.file} still has it in pipeline {pipeline.id}")
    open_ = [c for c in plan.decisions if not _decided(c, decisions)]
    if open_:
        said = "; ".join(f"{c.node}: {c.effect}. Decide: {c.decision}" for c in open_)
        raise Undecided(f"pipeline {pipeline.id}: {said}")
    lost = [c for c in plan.decisions if c.kind == "removed" and _id(c) in decisions.drop]
    lost += [c for c in plan.changes if c.kind == "left" and _id(c) in decisions.forget]
    if lost and not decisions.yes:
        said = "; ".join(f"{c.node}: {', '.join(map(str, c.in_flight.values())) or c.effect}" for c in lost)
        raise Undecided(f"pipeline {pipeline.id}: given up would be {said}. Add --yes if that is wanted")


def _id(change: Change) -> str:
    return Node(change.node).id


def _decided(change: Change, decisions: Decisions) -> bool:
    if change.what == "spool-path":
        # Looked at again once the pipeline stands still.
        return True
    if change.kind != "removed":
        return False
    renamed = Node(change.node).kind == "destinations" and _id(change) in decisions.rename
    return renamed or _id(change) in decisions.drop


def apply(
    file: Path,
    pipeline: Pipeline,
    decisions: Decisions,
    *,
    deadline: float,
    wake: Callable[[str], bool] | None,
    start: bool = True,
    step: Callable[[str], None] = lambda _: None,
) -> None:
    """Applies `file` to one pipeline of it; calls `step` with each step once it is done.

    `deadline`: seconds in which what is in flight should be delivered; `wake` makes sure that runs deliver it. Raises
    Undecided, ConfigError, and ConduitError if a node is still at work at the deadline.
    """
    broker = open_broker(pipeline.id, initialise=False)
    try:
        plan = plan_change(pipeline, broker)
        check(pipeline, plan, broker, decisions)
        target = _target(file, pipeline)
        if not plan.known:
            if lost := state_lost(open_spool(pipeline), pipeline.id):
                # Nobody could note what leaves, or has another name: its marks would stay for whoever gets the id next.
                raise lost
            _install(file, target, step)
            return
        broker.versions.interrupt()
        _stand_still(broker, pipeline, deadline, wake)
        step("stopped")
        _check_standing(broker, pipeline, plan, decisions)
        _install(file, target, step)
        for old, new in decisions.rename.items():
            _rename(broker, pipeline, old, new, step)
        _adopt(broker, pipeline, decisions, step)
        if start and broker.versions.interrupted():
            broker.lifecycle.start(destinations=False)
            step("started")
    finally:
        broker.close()


def _stand_still(broker: Broker, pipeline: Pipeline, deadline: float, wake: Callable[[str], bool] | None) -> None:
    """Stops the pipeline; a micro-batch under way is finished under the version that it began with, if possible."""
    until = time.monotonic() + deadline
    moves = broker.lifecycle.stored_status() not in ("stopped", "degraded")
    if moves and _live(pipeline.id) is not None:
        control.stop(pipeline.id, deadline=deadline, wake=wake)
    while held := broker.lifecycle.at_work():
        if time.monotonic() >= until:
            raise ConduitError(
                f"pipeline {pipeline.id}: {', '.join(held)} still at work after {deadline:g} s; nothing is changed. "
                "Apply again, with a longer --deadline"
            )
        time.sleep(POLL)
    if moves:
        # No node is at work: what is left waits for a destination that is down, and keeps its place.
        broker.lifecycle.force_stop()


def _check_standing(broker: Broker, pipeline: Pipeline, plan: Plan, decisions: Decisions) -> None:
    """Checks what can only be checked once the pipeline stands still, before anything is changed. Raises Undecided, and
    ConfigError for a destination that cannot be renamed."""
    if any(c.what == "spool-path" for c in plan.changes):
        waiting = [id for id in broker.lifecycle.registered()[1] if in_flight(broker, id).micro_batches]
        if waiting or broker.micro_batches.unsealed():
            raise Undecided(
                f"pipeline {pipeline.id}: spool.path cannot change while micro-batches lie in the old spool for "
                f"{', '.join(waiting) or 'the seal'}. It is stopped: `conduit start {pipeline.id}`, let it drain, "
                "apply again"
            )
    for old, new in decisions.rename.items():
        broker.versions.check_rename(old, new)
        if broker.access.hash(broker.keys.destination(old)):
            look(broker, open_spool(pipeline), Node.destination(old))
        destination = pipeline.destination(new)
        outside = destination.delivery.guarantee != "at-least-once" or destination.delivery.pipe in INDEX_PIPES
        if outside and in_flight(broker, old).micro_batches:
            raise Undecided(
                f"pipeline {pipeline.id}: {old} has records in flight, and what it wrote of them is known outside by "
                f"its id (guarantee {destination.delivery.guarantee}, pipe {destination.delivery.pipe}): as {new} it "
                f"would write them twice. It is stopped: `conduit start {pipeline.id}`, let it drain, apply again"
            )


def _live(id: str) -> Path | None:
    """Returns the file in the pipelines' folder that holds a pipeline; None if there is none."""
    loaded = load_folder(settings().path(settings().pipelines))
    return next((Path(p.file) for p in loaded.pipelines if p.id == id), None)


def check_beside(file: Path, pipelines: Sequence[Pipeline]) -> None:
    """Raises ConfigError if the file, put where runs see it, would keep a pipeline from being loaded: one of its own
    that clashes with an existing one, or another that was loaded until now."""
    folder = Path(settings().path(settings().pipelines))
    ids = {p.id for p in pipelines}
    before = load_folder(folder, plugins=True)
    put = {_place(file, p, before.declared): file for p in pipelines}
    after = load_folder(folder, plugins=True, put=put).errors
    if found := [error for error in after if error.pipeline in ids or error not in before.errors]:
        first = min(found, key=lambda error: error.pipeline not in ids)
        raise ConfigError(f"{first}; {first.hint}")


def _place(file: Path, pipeline: Pipeline, declared: Sequence[Declared]) -> Path:
    """Returns the file that declares the pipeline, even if it cannot be loaded; else the file's name in the folder."""
    folder = Path(settings().path(settings().pipelines))
    return next((Path(d.file) for d in declared if d.id == pipeline.id), folder / file.name)


def _target(file: Path, pipeline: Pipeline) -> Path:
    """Returns the path at which runs see the file. Raises ConfigError if other pipelines would go with the old file."""
    target = _place(file, pipeline, load_folder(settings().path(settings().pipelines)).declared)
    if target.resolve() == file.resolve() or not target.exists():
        return target
    here, there = load_file(file), load_file(target)
    if lost := sorted({d.id for d in there.declared} - {p.id for p in here.pipelines}):
        raise ConfigError(
            f"{file} would take the place of {target}, which also holds {', '.join(lost)}: put them into {file}, too"
        )
    if unread := next((f for f in there.errors if f.code in ("E001", "E002")), None):
        raise ConfigError(
            f"{file} would take the place of {target}, and what that holds beside {pipeline.id} is unknown ({unread}): "
            "fix it, or remove it"
        )
    return target


def _install(file: Path, target: Path, step: Callable[[str], None]) -> None:
    from conduit_tasks.spool.durable import replace_file

    data = file.read_bytes()
    if not target.exists() or target.read_bytes() != data:
        replace_file(target, data)
        step(f"{target} is {file}")


def _rename(broker: Broker, pipeline: Pipeline, old: str, new: str, step: Callable[[str], None]) -> None:
    """Renames a destination, in the spool and the dead-letter store first: the broker's state says whether it is
    done."""
    from conduit_tasks.dead_letters.move import move
    from conduit_tasks.spool.checkpoint import Mark
    from conduit_tasks.spool.names import names, renamed

    spool = open_spool(pipeline)
    state = broker.access.hash(broker.keys.destination(old))
    if not state:
        if old in names(spool, pipeline.id).get(new, ()) and Checkpoint(spool, pipeline.id).read(Node.destination(old)):
            # Redis was lost in the middle, and rebuilt by the mark of the new id: that of the old one must not stay.
            _unmark(broker, spool, old)
            step(f"{old} has no mark any more")
        return
    renamed(spool, pipeline.id, old, new)
    step(f"{old} is known as {new} in the spool")
    # X7: a rebuild after Redis was lost finds the new id where the old one was.
    hashes = {"destination": state, "window": broker.access.hash(broker.keys.window(old))}
    with broker.leases.acquire(Node.destination(new), OWNER) as lease:
        number = int(state.get("cursor", 0))
        Checkpoint(spool, pipeline.id).write(Mark(Node.destination(new), lease.token, lease.token, number, hashes))
    step(f"{new} is marked where {old} is")
    moved = move(settings().path(settings().dead_letters), pipeline.id, old, new)
    step(f"{moved} files of dead letters moved")
    _unmark(broker, spool, old)
    step(f"{old} has no mark any more")
    broker.versions.rename(old, new)
    step(f"{old} is {new}")


def _unmark(broker: Broker, spool: Spool, id: str) -> None:
    """Has the marks of a destination count no more, before Redis forgets its id: whoever has that later is another, and
    by these marks a lost Redis would be rebuilt as if it had got what this one got (X7)."""
    with broker.leases.acquire(Node.destination(id), OWNER) as lease:
        Checkpoint(spool, broker.pipeline).forget(Node.destination(id), lease.token)


def _adopt(broker: Broker, pipeline: Pipeline, decisions: Decisions, step: Callable[[str], None]) -> None:
    with opened(pipeline, "apply"):
        # Opening registers what is new, from now on.
        step("registered")
    broker.versions.adopt(pipeline, OWNER)
    step(f"version {pipeline.digest()} is in force")
    # A destination with nothing left is forgotten without being asked for.
    for id in broker.versions.left():
        nothing = (
            not in_flight(broker, id).micro_batches
            and not broker.dead_letters.count(id)
            and not broker.redrives.parked(id)
        )
        if nothing or id in decisions.forget:
            _unmark(broker, open_spool(pipeline), id)
            step(f"{id} has no mark any more")
            broker.versions.forget(id)
            step(f"{id} is forgotten")
