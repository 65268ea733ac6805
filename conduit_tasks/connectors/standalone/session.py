"""A source connector at work: opened at the last acked position, read, acked in the order of its records, stopped.

A connector is opened at what it was *acked*, not at what was read from it, as Conduit does: only so may it forget what
it was acked, and nothing else. What it then sends again is known by its position (which is a record's identity), so it
is not read twice; and it is acked to the process that sent it, in its order, once the pipeline commits its micro-batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import held
from conduit_tasks.connectors.base import Position, Token
from conduit_tasks.connectors.standalone import settled
from conduit_tasks.connectors.standalone.client import Client, configured
from conduit_tasks.connectors.standalone.found import Program
from conduit_tasks.connectors.standalone.inbox import Inbox, Outbox
from conduit_tasks.connectors.standalone.messages import message
from conduit_tasks.errors import BrokerUnavailable, ConduitError, SourceError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.spool.told import Told

log = logging.getLogger(__name__)

SIDE = "Source"
ACKS = 1_000
"""Most positions in one message of acks."""
LOOK = 0.25
"""Seconds between two looks at what the pipeline has acked."""
OPEN = 1 << 62
"""Number of what was read and not staged: of no micro-batch yet."""


class Session:
    """One process of a source connector. `at`: the position to open it at; `sent`: positions behind it that are staged
    and may come again, with the name of their micro-batch, in order; `kept`: what its position has of what it was told;
    `told`, `own_name`: where that is noted, and for whom."""

    def __init__(
        self,
        program: Program,
        name: str,
        id: str,
        config: Mapping[str, str],
        *,
        at: bytes,
        sent: Sequence[tuple[str, Sequence[bytes]]],
        kept: settled.Kept | None,
        told: Told | None = None,
        own_name: str = "",
    ) -> None:
        self.name = name
        self._known = {position: number for number, (_, of) in enumerate(sent) for position in of}
        self._numbers = {batch: number for number, (batch, _) in enumerate(sent)}
        self._out: dict[bytes, int] = {}
        self._acked = -1
        self._new: list[tuple[Any, int]] = []
        self._taken: list[bytes] = []
        self.taking = False
        """Whether a read is under way, or ended without being staged."""
        self.end: Token = None
        """The position up to which it was read and staged."""
        self.began = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.client = Client(program.file, name, id, settled.hiding_of(config))
        try:
            configured(self.client, SIDE, config)
            self.kept = settled.tell(self.client, SIDE, kept, config, told, own_name)
            self.client.call(SIDE, "Open", position=at)
            self._acks = Outbox()
            self._inbox = Inbox(self.client.stream(SIDE, self._acks), self._broken)
        except NotImplementedError as error:
            self.client.kill()
            raise SourceError(f"{name}: it has no source ({error} is not implemented)") from None
        except ConduitError as error:
            self.client.kill()
            raise SourceError(str(error)) from None
        except BaseException:
            self.client.kill()
            raise

    def _broken(self, error: Any) -> SourceError:
        return SourceError(f"{self.name}: it broke off while it was read: {self.client.said(error)}")

    @property
    def ended(self) -> bool:
        """Whether the connector has ended its stream by itself, and everything it sent was taken."""
        return self._inbox.ended and not self._new

    def waiting(self, seconds: float) -> bool:
        """Returns whether something new is there, or comes within `seconds`. Raises SourceError."""
        while not self._new:
            found = self._inbox.take(seconds)
            if found is None:
                return False
            self._sift(*found)
        return True

    def read(self, records: int | None, size: int | None, first: float, idle: float) -> Iterator[list[Any]]:
        """Yields what is new, in order, until there are `records` or `size` bytes, or nothing came for `idle` seconds
        (`first`: for the first of all). Raises SourceError."""
        self.taking, count, used, patience = True, 0, 0, first
        while (records is None or count < records) and (size is None or used < size) and self.waiting(patience):
            patience = idle
            room = len(self._new) if records is None else min(len(self._new), records - count)
            if size is not None:
                room, used = _within(self._new[:room], size, used)
            taken, self._new = [record for record, _ in self._new[:room]], self._new[room:]
            count += len(taken)
            self._taken += [record.position for record in taken]
            yield taken

    def _sift(self, found: Any, size: int) -> None:
        """Keeps what is new of a message. Raises SourceError if the connector breaks its contract."""
        records = found.records
        each = size // max(1, len(records))
        positions = [record.position for record in records]
        with self._lock:
            out, known = self._out, self._known
            came = dict.fromkeys(positions, OPEN)
            if not known and b"" not in came and len(came) == len(positions) and out.keys().isdisjoint(came):
                out |= came
                self._new += zip(records, repeat(each))
                return
            for record, position in zip(records, positions):
                if not position:
                    raise SourceError(f"{self.name}: it sent a record without a position")
                if position in out:
                    raise SourceError(
                        f"{self.name}: it sent the position {position[:80]!r} twice: which of the records that is "
                        "cannot be told; this is a fault of the connector"
                    )
                if known and (number := known.pop(position, None)) is not None:
                    out[position] = number
                else:
                    out[position] = OPEN
                    self._new.append((record, each))

    def staged(self, batch: str) -> None:
        """Notes what was read since the last call as a micro-batch of this name."""
        with self._lock:
            number = self._numbers[batch] = len(self._numbers)
            for position in self._taken:
                self._out[position] = number
            self._taken, self.taking = [], False

    @property
    def taken(self) -> Sequence[bytes]:
        """The positions that were read and are not staged."""
        return self._taken

    def nothing_staged(self) -> None:
        """Notes that a read is over that gave nothing."""
        self.taking = False

    @property
    def unacked(self) -> bool:
        """Whether something that this process sent is staged, and not acked to it."""
        with self._lock:
            return any(number != OPEN for number in self._out.values())

    def acked(self, position: Position) -> None:
        """Sends the acks up to a position that was committed, in the order of the records."""
        token = position.get("")
        with self._lock:
            number = self._numbers.get(token["batch"]) if token else None
            if number is not None:
                self._acked = max(self._acked, number)
            done = []
            for each, of in self._out.items():
                if of > self._acked:
                    break
                done.append(each)
            for each in done:
                del self._out[each]
            request = message("connector.v2.Source.Run.Request")
            for start in range(0, len(done), ACKS):
                self._acks.put(request(ack_positions=done[start : start + ACKS]))

    def keep_acking(self, scope: held.Scope) -> None:
        """Gives acks from now on, beside whatever else is done, as they are committed."""

        def run() -> None:
            while not self._over.wait(LOOK):
                try:
                    self.acked(scope.told())
                except BrokerUnavailable:
                    continue  # they are given later
                except Exception:
                    log.exception("%s: its acks cannot be given", self.name)

        threading.Thread(target=run, name=f"acks of {self.name}", daemon=True).start()

    def close(self, *, at_once: bool = False) -> None:
        """Stops the connector in good order, unless `at_once`: it sends no more, gets the end of its acks, tears down.
        What it sent and was not acked counts as not delivered there, and comes again."""
        self._over.set()
        if at_once or self._inbox.error is not None:
            self.client.kill()
            return
        limit = settings().connectors_timeout
        try:
            if not self._inbox.ended:
                self._drop()
                self.client.call(SIDE, "Stop")
                self._acks.close()
                self._inbox.drain(limit)
            self.client.call(SIDE, "Teardown")
        except (ConduitError, NotImplementedError) as error:
            log.warning("%s: it was not stopped in good order: %s", self.name, error)
            self.client.kill()
            return
        self.client.finish()

    def _drop(self) -> None:
        """Makes room for what the connector is just sending, so that it hears of the stop."""
        threading.Thread(target=self._inbox.drain, args=(settings().connectors_timeout,), daemon=True).start()


def _within(records: Sequence[tuple[Any, int]], size: int, used: int) -> tuple[int, int]:
    """Returns how many of the records fit, at least one, and the bytes used with them."""
    for n, (_, each) in enumerate(records):
        if n and used + each > size:
            return n, used
        used += each
    return len(records), used
