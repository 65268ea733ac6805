"""Backlogs of destinations: records, bytes and age of what is sealed and not confirmed, in one round trip however much
that is.

A sealed micro-batch knows what was ever sealed up to it, so that two of them say what lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.state import Backlog
from conduit_tasks.redis_client.portions import portions

if TYPE_CHECKING:
    from conduit_tasks.broker.access import Access

FIELDS = ("total", "bytes", "sealed_at", "upto", "upto_bytes")
"""Fields of a sealed micro-batch that `pending` takes."""


def beyond(access: Access, sealed: int, cursors: Sequence[int]) -> list[Backlog]:
    """Returns everything sealed beyond each cursor; `sealed`: the last sealed number. What an earlier version sealed
    has no sums: those micro-batches are read one by one."""
    needed = fronts(cursors, sealed)
    *found, (secs, _) = access.read(*(("HMGET", access.keys.micro_batch(m), *FIELDS) for m in needed), ("TIME",))
    known = dict(zip(needed, found))
    out = []
    for cursor in cursors:
        backlog = pending(known, cursor, sealed) or summed(access, cursor, sealed)
        if backlog.oldest_sealed_at is not None and backlog.oldest_sealed_at > int(secs) + 1:
            # The server's clock went back: until it has caught up, they would have no age.
            behind = range(cursor + 1, sealed + 1)
            access.not_ahead(*((access.keys.micro_batch(m), "sealed_at", "") for m in behind))
            backlog = replace(backlog, oldest_sealed_at=float(secs))
        out.append(backlog)
    return out


def fronts(cursors: Sequence[int], sealed: int) -> list[int]:
    """Returns the micro-batches whose fields `pending` needs: those behind the cursors, and the last sealed one."""
    return sorted({cursor + 1 for cursor in cursors if cursor < sealed} | {sealed})


def pending(known: Mapping[int, Sequence[str | None]], cursor: int, sealed: int) -> Backlog | None:
    """Returns everything sealed beyond a cursor, by the `FIELDS` of its `fronts`; None if they have no sums."""
    if cursor >= sealed:
        return Backlog()
    total, size, at, upto, upto_bytes = known[cursor + 1][:5]
    all_, all_bytes = known[sealed][3:5]
    if upto is None or all_ is None:
        return None
    return Backlog(
        records=int(all_) - int(upto) + int(total or 0),
        bytes=int(all_bytes or 0) - int(upto_bytes or 0) + int(size or 0),
        oldest_sealed_at=int(at) / 1e6 if at else None,
        micro_batches=sealed - cursor,
    )


def summed(access: Access, cursor: int, sealed: int) -> Backlog:
    """Returns everything sealed beyond a cursor, by a look at each micro-batch."""
    behind, found = range(cursor + 1, sealed + 1), list[Any]()
    for some in portions(behind):
        found += access.read(*(("HMGET", access.keys.micro_batch(m), *FIELDS[:3]) for m in some))
    return Backlog(
        records=sum(int(total or 0) for total, _, _ in found),
        bytes=sum(int(size or 0) for _, size, _ in found),
        oldest_sealed_at=next((int(at) / 1e6 for _, _, at in found if at), None),
        micro_batches=len(behind),
    )
