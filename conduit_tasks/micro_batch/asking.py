"""Asks the sources what lies past their positions: an equal share of the room for each, and another one first each
time; leaves out, for the others, one that cannot answer or could not be read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conduit_tasks.connectors import held
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.capabilities import Held, Queue
from conduit_tasks.connectors.registry import source_class
from conduit_tasks.errors import (
    BrokerUnavailable,
    ConduitError,
    InvariantBroken,
    NotDurable,
    PartLeftOut,
    PipelineStopped,
    SpoolError,
    StateLost,
)
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.micro_batch.recovery import NO_FAILURE, count, too_early
from conduit_tasks.micro_batch.visibility import unsettled
from conduit_tasks.spool.told import Told
from conduit_tasks.topology import Limits, Source

if TYPE_CHECKING:
    from conduit_tasks.broker.failures import Failing
    from conduit_tasks.broker.state import MicroBatch

log = logging.getLogger(__name__)

OF_ALL = (BrokerUnavailable, InvariantBroken, NotDurable, PipelineStopped, SpoolError, StateLost)
"""Errors that are not the fault of one source."""
_OF_ALL = {error.__name__ for error in OF_ALL}


def node_of(source_id: str) -> str:
    """Returns the name under which failures of planning a source are counted."""
    return f"plan.{source_id}"


@dataclass
class Asked:
    """Answers of the sources. `failed`: why a source was left out, in whole or in part; `waiting`: failures of sources
    that are not asked yet, because they failed a moment ago; `well`: sources that answered in full."""

    slices: dict[str, list[Slice]] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    waiting: list[Failing] = field(default_factory=list)
    well: list[str] = field(default_factory=list)

    def told(self) -> dict[str, str]:
        """Returns `failed` in words."""
        return {id: _said(error) for id, error in self.failed.items()}


def ask(context: Context, room: Limits, expect: int, most: int) -> Asked:  # noqa: PLR0912 - the cases of one answer
    """Asks every source in turn for an equal share of the room that is left, and of `most` slices; together never more
    (invariant 7). The first source to be asked changes with each micro-batch (`expect`), so that a room smaller than
    the number of sources starves none of them; a source that has nothing leaves its share to the others.

    A failure is counted as that source's own, and the source is then left alone until its delay is over. If only a part
    of the source cannot be read, the rest of it goes on.
    """
    pipeline, broker = context.pipeline, context.broker
    nodes = [node for s in pipeline.sources for node in (node_of(s.id), s.node)]
    failing = {f.node: f for f in broker.failures.failing(*nodes)}
    out = Asked()
    records, size, slices, number = room.records, room.bytes, most, len(pipeline.sources)
    for left, at in zip(range(number, 0, -1), range(expect, expect + number)):
        source = pipeline.sources[at % number]
        node = node_of(source.id)
        share = -(-slices // left)
        limit = Limit(_share(records, left), _share(size, left), share)
        if limit.records == 0 or limit.bytes == 0 or share == 0:
            break
        before, unread = failing.get(node), failing.get(source.node)
        if unread is not None and too_early(context, unread):
            out.waiting.append(unread)
            continue
        early = before is not None and too_early(context, before)
        if before is not None and early and before.error.error_class != PartLeftOut.__name__:
            out.waiting.append(before)
            continue
        if elsewhere(pipeline.id, source):
            continue
        found: list[Slice] = []
        try:
            found = _plan(context, source, limit)
            out.well.append(source.id)
            if before is not None:
                broker.failures.recovered(node)
            if unread is not None and not found:
                # What could not be read is gone, or was passed over by hand.
                broker.failures.recovered(source.node)
        except OF_ALL:
            raise
        except Exception as error:
            if isinstance(error, PartLeftOut):
                found = error.slices
            elif not isinstance(error, ConduitError):
                log.exception("%s: the source %s failed", pipeline.id, source.id)
            if not early:
                out.failed[source.id] = error
                log.error("%s: the source %s is left out: %s", pipeline.id, source.id, _said(error))
                if not isinstance(error, NO_FAILURE):
                    count(context, node, _said(error), type(error).__name__)
        out.slices[source.id] = found = found[:share]
        records = _rest(records, limit.records, [s.records for s in found])
        size = _rest(size, limit.bytes, [s.bytes for s in found])
        slices -= len(found)
    out.slices = {s.id: out.slices[s.id] for s in pipeline.sources if s.id in out.slices}
    return out


def elsewhere(pipeline: str, source: Source) -> bool:
    """Returns whether only another process can ask a source: the one that holds it (`capabilities.Held`)."""
    of = source_class(source.plugin)
    return issubclass(of, Held) and held.scope(pipeline, source.id) is None


def failed_to_read(context: Context, unsealed: MicroBatch) -> list[str]:
    """Returns the sources that failed to be read and that the unsealed micro-batch waits for: they are to leave it, so
    that it does not hold up the others. Empty if there are no others."""
    sources = context.pipeline.sources
    waited_for: dict[str, str] = {s.node: s.id for s in sources if s.node in unsealed.missing}
    if len(sources) < 2 or not waited_for:
        return []
    failing = [f for f in context.broker.failures.failing(*waited_for) if f.error.error_class not in _OF_ALL]
    for failure in failing:
        log.error("%s: micro-batch %d goes on without a source: %s", context.pipeline.id, unsealed.number, failure)
    return [waited_for[f.node] for f in failing]


def _plan(context: Context, source: Source, limit: Limit) -> list[Slice]:
    position = context.broker.positions.planned(source.id)
    with halting_call(context.broker, node_of(source.id)), context.sources.asked(source.id) as connector:
        if isinstance(connector, Queue):
            connector.receipts, connector.unsettled = Kept(context.spool), unsettled(context, source)
            connector.told = Told(context.spool, context.pipeline.id, source.node)
        return connector.plan(position, limit)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _share(room: int | None, sources: int) -> int | None:
    return None if room is None else -(-room // sources)


def _rest(room: int | None, share: int | None, taken: Sequence[int | None]) -> int | None:
    """Returns what slices leave of a room; they take their whole share if they cannot say what they hold."""
    if room is None or share is None:
        return None
    known = [n for n in taken if n is not None]
    return max(0, room - (sum(known) if len(known) == len(taken) else share))
