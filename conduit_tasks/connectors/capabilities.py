"""Capabilities of sources beyond plan, read and ack: to wake a pipeline, to be read again by a replay, to list what
there is, to be a queue, to hold one connection. A source inherits those that it has.

```python
class Orders(Watchable, Replayable): ...
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from conduit_tasks.connectors.base import Position, Source


class Watchable(Source):
    """A source that can wake its pipeline (docs/schedules.md)."""

    def news(self, position: Position) -> bool:
        """Returns whether there is something past `position`. The check is cheap and changes nothing. If the source
        wakes the pipeline, it runs every few seconds on one object (by one thread at a time). Raises as `plan` does."""
        raise NotImplementedError


class Replayable(Source):
    """A source whose acked records can still be read: a replay reads it, and not the spool."""

    def before(self, position: bytes, at: Position) -> bool | None:
        """Returns whether a record's position lies before the source position `at`. None if the source cannot tell: a
        replay of missing records is then refused."""
        return None

    def history(self, since: int | None) -> Position:
        """Switches `plan` to a replay: from now on it ignores acks and changes nothing anywhere. Returns the position
        to begin at: before every record whose own time is `since` (µs since the epoch; None: any) or later."""
        return {}


class Discovering(Source):
    """A source that can say what its system offers (`conduit connectors describe NAME --set …`)."""

    def discover(self) -> list[dict[str, Any]]:
        """Returns a row for each thing that it can read, all with the same keys. Raises SourceError."""
        raise NotImplementedError


class Receipts(Protocol):
    """Data that a source keeps beside the micro-batch until its ack: the handles of a queue's messages."""

    def put(self, data: bytes) -> str:
        """Stores `data`, durable on return, and returns the name to find it by."""
        ...

    def get(self, name: str) -> bytes:
        """Returns the stored data. Raises SpoolGone if it is gone, SpoolError if it cannot be read now."""
        ...


class Queue(Source):
    """A queue: each micro-batch is acked on its own, in order, as its position holds what to delete. A message that is
    not acked is handed out again."""

    comes_again: ClassVar[float] = 3_600.0
    """Seconds after its ack in which a message may be received again."""
    receipts: Receipts
    """Store of receipts; set for `plan` (to read only), for `read` of an open slice, for `hold` and for `ack`."""
    unsettled: Sequence[Position] = ()
    """Ends of micro-batches whose messages may be received again, because they are not acked, or were sealed not long
    ago. Set for `plan` and `read`."""
    hold_every: float = 0.0
    """Seconds after which `hold` is due again; 0: nothing has to be held."""

    def hold(self, positions: Sequence[Position], spare: float) -> None:
        """Keeps the unacked messages of these positions from being handed out to others until the next call, or for
        `spare` seconds more if no task runs meanwhile. Raises Unavailable."""


class Held(Queue):
    """A queue that is read over one connection, which stays open from read to read and takes the acks. The process of
    its own node holds it (`connectors.held`), asks it what is new, and gives it the acks that the pipeline commits;
    other processes of the pipeline neither plan it nor ack it."""

    comes_again = 0.0
    in_driver = True
