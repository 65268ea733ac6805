"""Notices that Redis has forgotten what the spool knows, and brings its state back (SEMANTICS X7).

Redis has forgotten something if a mark in the spool says more than Redis does, or if a manifest was sealed that Redis
never opened: its last second is gone, or an older copy was put back. What was told to a source or a destination in that
time is then in the spool alone, so the state is rebuilt from there before anything else is planned, read or sealed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from conduit_tasks.errors import StateLost
from conduit_tasks.micro_batch.checkpoint import marked
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.spool.checkpoint import COLLECTED, Checkpoint, Known, Mark, exceeds, tokens
from conduit_tasks.spool.spool import folder_name
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.spool import Spool

log = logging.getLogger(__name__)

WAIT = 60.0
"""Seconds to wait for another run that is bringing the state back."""


def remember(context: Context) -> bool:
    """Brings the state back from the spool if Redis has forgotten something; returns whether it had. Holders that work
    on what Redis said before are then fenced.

    Raises StateLost if Redis knows nothing at all of the pipeline, which may be because it is another Redis, or if it
    lacks something after the rebuild, too.
    """
    from conduit_tasks.micro_batch import rebuild

    pipeline, broker, spool = context.pipeline, context.broker, context.spool
    marks = Checkpoint(spool, pipeline.id).read()
    said = forgotten(context, marks)
    if not rebuild.holds_state(broker):
        here_before = 0 < broker.access.numbers("created")[0] < _newest(spool, pipeline.id, marks)
        if not (said and here_before) and (lost := state_lost(spool, pipeline.id)):
            raise lost
    if not said:
        return False
    with broker.leases.acquire(rebuild.NODE, context.owner, wait=WAIT) as lease, keeping(lease):
        # Another run may have brought it back meanwhile.
        if said := forgotten(context, Checkpoint(spool, pipeline.id).read()):
            log.warning("%s: Redis has forgotten that %s; its state is rebuilt from the spool", pipeline.id, said)
            build = partial(rebuild.from_spool, pipeline, spool, broker)
            rebuild.apply(broker, build(), replace=True, again=build)
            if said := forgotten(context, Checkpoint(spool, pipeline.id).read()):
                raise StateLost(
                    f"Redis has forgotten that {said}, also after the state of pipeline {pipeline.id} was rebuilt: "
                    "Redis and the spool each know of something that the other does not. To go on from what Redis "
                    f"says, remove the newest mark of that node in {spool.uri(folder_name(pipeline.id))}/checkpoint: "
                    "what only the mark knows is delivered again"
                )
    return True


def lost(context: Context) -> StateLost | None:
    """Returns the error of a pipeline of which Redis knows nothing, but the spool does; None for any other one."""
    from conduit_tasks.micro_batch import rebuild

    return None if rebuild.holds_state(context.broker) else state_lost(context.spool, context.pipeline.id)


def state_lost(spool: Spool, pipeline: str) -> StateLost | None:
    """Returns the error of a pipeline that only the spool knows; None if the spool does not know it either."""
    if not _newest(spool, pipeline, Checkpoint(spool, pipeline).read()):
        return None
    folder = spool.uri(spool.folder(pipeline, 1).rpartition("/")[0])
    return StateLost(
        f"Redis knows nothing of pipeline {pipeline}, but its spool does: the state is lost, or this is another Redis. "
        f"Bring it back with `conduit broker rebuild {pipeline}` (--dry-run says what it would do). To begin again and "
        f"read everything again, remove {folder}"
    )


def _newest(spool: Spool, pipeline: str, marks: dict[str, Mark]) -> int:
    """Returns the time of the newest mark or manifest (µs); 0 if there is none."""
    return max([mark.at for mark in marks.values() if mark.claims] + [*tokens(spool, pipeline).values()] + [0])


def forgotten(context: Context, marks: dict[str, Mark]) -> str:
    """Returns something that the spool knows and Redis does not, in words; empty if there is nothing. `marks`: read
    before this is called, so that they are not ahead of Redis unless it has forgotten."""
    pipeline, broker, spool = context.pipeline, context.broker, context.spool
    nodes, gone = marked(pipeline), marks.get(COLLECTED)
    for node, now in zip(nodes, _known(context, nodes), strict=True):
        if (mark := marks.get(node)) is not None and exceeds(mark, now, spool, pipeline.id):
            if mark.claims > now.number:
                return f"{node} was at micro-batch {mark.claims} (it says {now.number})"
            return f"{node} had said {mark.known.words} words (it counts {now.words})"
        if gone and now.number < gone.number and spool.sealed(pipeline.id, now.number + 1) is None:
            return f"micro-batch {now.number + 1} was collected while {node} was out of the file"
    last = broker.access.numbers("last")[0]
    # A number is given before its manifest is written; it is read twice, as another run may do both in between.
    if spool.sealed(pipeline.id, last + 1) is not None and broker.access.numbers("last")[0] == last:
        return f"micro-batch {last + 1} was sealed (it says that {last} was the last)"
    if broker.access.field(broker.keys.pipeline, "rebuilding") is not None:
        # It forgot the end of a rebuild, or whoever rebuilt it died: everything stands still until it is done again.
        return "its state was rebuilt to the end"
    return ""


def _known(context: Context, nodes: list[str]) -> list[Known]:
    """Returns what Redis knows of each node."""
    keys = context.broker.keys
    commands: list[tuple[str, ...]] = []
    for node in map(Node, nodes):
        if node.kind == "destinations":
            commands.append(("HMGET", keys.destination(node.id), "cursor", "words", "resent"))
        else:
            commands.append(("HMGET", keys.ack(node.id), "m", "to"))
    said = [[int(n or 0) for n in found] for found in context.broker.access.read(*commands)]
    destinations = [Node(node).kind == "destinations" for node in nodes]
    return [Known(*found) if kind else Known(max(found)) for kind, found in zip(destinations, said, strict=True)]
