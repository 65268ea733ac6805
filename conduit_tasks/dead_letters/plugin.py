"""Dead letters written by any destination's plugin (`dead-letter-queue: {plugin: …}`, C14, T7).

A letter is a record of its own: the payload holds everything about it, with the whole failed record. Its id is the same
at every attempt, and differs for each destination and epoch: if two destinations refuse a record, or a redrive fails,
the letters stand side by side in any system that tells rows apart by id.

Letters are written without a state (docs/adr/0011-dead-letters-are-kept-here-too.md): each `store` is a connector of
its own, named after the letters. So storing the same letters again replaces them, if the plugin can do that, and
nothing else is ever taken back.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.letters import unfit
from conduit_tasks.dead_letters.letter_record import as_dict, letter_id, letter_record
from conduit_tasks.errors import ConduitError, ConfigError, Refused, Unavailable
from conduit_tasks.logs import carried
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.topology import LETTERS_TIMEOUT, Delivery

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import BatchDestination, RecordDestination
    from conduit_tasks.record.record import Record

log = logging.getLogger(__name__)

SENDS = Delivery(retry=4, backoff_delay=0.2, timeout=10.0)
"""Delivery options of letters: five attempts, then the nack is not acknowledged."""
WRITE = LETTERS_TIMEOUT
"""Seconds for one write of letters, or for opening or closing what writes them."""
MOST = 1_000
"""Limit of letters in one write."""
AT_ONCE = 16
"""Limit of letters on their way to a record-wise destination."""


@dataclass(frozen=True)
class PluginHandler:
    """Handler that writes letters with a destination's plugin, as a delivery of their own. `owner`: owner of the
    letters, the destination's id or `_pipeline`."""

    cls: type[RecordDestination] | type[BatchDestination]
    settings: dict[str, str] = field(repr=False)
    pipeline: str
    owner: str

    def __post_init__(self) -> None:
        """Raises ConfigError if a setting is wrong, or the plugin cannot write letters."""
        if said := unfit(self.cls):
            raise ConfigError(f"dead-letter-queue of {self.pipeline}: {said}")
        self.cls(self.settings)

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """See Handler. Raises Unavailable (the destination cannot be reached, or does not answer), ConduitError (it
        refuses a letter)."""
        from conduit_tasks.connectors.base import RecordDestination

        if not letters:
            return
        destination = self.cls(self.settings)
        destination.pipeline, destination.for_letters = self.pipeline, True
        names = hashlib.blake2b("\n".join(map(letter_id, letters)).encode(), digest_size=8).hexdigest()
        destination.connector = f"{self.owner}.dead-letters/{names}"
        if isinstance(destination, RecordDestination):
            asyncio.run(self._send(destination, letters))
        else:
            self._write(destination, letters)

    @property
    def _name(self) -> str:
        return self.cls.spec.name

    def _records(self, letters: Sequence[DeadLetter]) -> list[Record]:
        """Returns the letters as records. The failed record, which may be anything, becomes JSON text if the columns of
        a row have types of their own, or if it is nested so deeply that with the letter around it it would be too deep
        for a record."""
        from conduit_tasks.record import jsons

        rows = any(option.name == "rows" for option in self.cls.spec.options)
        out = []
        for letter in letters:
            payload = as_dict(letter)
            if rows or jsons.fault(payload) is not None:
                payload["record"] = jsons.dumps(payload["record"]).decode()
            out.append(letter_record(letter, payload))
        return out

    # --- record-wise

    async def _send(self, destination: RecordDestination, letters: Sequence[DeadLetter]) -> None:
        from conduit_tasks.dead_letters.portions import portions
        from conduit_tasks.delivery.retry import RetryPolicy

        policy, room = RetryPolicy(SENDS), asyncio.Semaphore(AT_ONCE)

        async def one(record: Record) -> None:
            async with room:
                await self._send_one(destination, record, policy)

        try:
            await asyncio.wait_for(destination.open(SENDS.timeout), WRITE)
            for part in portions(letters, MOST):
                async with asyncio.TaskGroup() as group:
                    for record in self._records(part):
                        group.create_task(one(record))
        except TimeoutError:
            raise self._silent() from None
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            try:
                await asyncio.wait_for(destination.close(), SENDS.timeout)
            except TimeoutError:
                log.warning("the dead-letter destination %s does not close; it is left", self._name)

    async def _send_one(self, destination: RecordDestination, record: Any, policy: Any) -> None:
        from conduit_tasks.delivery.single import send

        outcome, attempts = await send(destination, record, policy, SENDS.timeout)
        if outcome.kind != "delivered":
            raise Unavailable(
                f"the dead-letter destination {self._name} did not take {record.after['id']} in {attempts} "
                f"attempt(s): {outcome.message}",
                status=outcome.status,
            )

    # --- batch-wise

    def _write(self, destination: BatchDestination, letters: Sequence[DeadLetter]) -> None:
        from conduit_tasks.dead_letters.portions import portions
        from conduit_tasks.delivery.retry import RetryPolicy

        thread, policy = _Thread(f"dead letters to {self._name}"), RetryPolicy(SENDS)
        writer = _Writer(destination)
        size = min(MOST, destination.chunk)

        def call(function: Callable[..., Any], *args: Any) -> Any:
            def attempt() -> Any:
                try:
                    return thread.call(lambda: function(*args), WRITE)
                except TimeoutError:
                    # The call that hangs still uses the destination: no other call is possible.
                    raise self._silent() from None

            return policy.calling(lambda _: None, time.sleep)(attempt)

        try:
            todo = list(portions(letters, size))[::-1]
            while todo:
                part = todo.pop()
                try:
                    call(writer.write, self._records(part))
                except Refused as error:
                    if len(part) == 1:
                        raise ConduitError(
                            f"the dead-letter destination {self._name} refuses the letter of record "
                            f"{part[0].record.id}: {error}"
                        ) from error
                    todo += [part[len(part) // 2 :], part[: len(part) // 2]]
        finally:
            thread.end(destination.close)

    def _silent(self) -> ConduitError:
        return ConduitError(f"the dead-letter destination {self._name} did not answer within {WRITE:g} s")


class _Writer:
    """Writer that opens its destination before the first write and after each one that failed, as the engine does."""

    def __init__(self, destination: BatchDestination) -> None:
        self._destination = destination
        self._state: dict[str, Any] | None = None
        self._opened = False
        self._written = 0

    def write(self, records: Sequence[Record]) -> None:
        from conduit_tasks.connectors.rows import Rows
        from conduit_tasks.record.schema import spool_batch

        destination = self._destination
        if not self._opened:
            destination.open(self._state)
        self._opened = False
        first, last = self._written, self._written + len(records) - 1
        batch = spool_batch(range(len(records)), range(first, last + 1), records)
        self._state = destination.write(Rows(batch, [record.origin for record in records], 0, first, last))
        self._opened, self._written = True, last + 1


class _Thread:
    """Thread that runs one call after the other, each for a limited time; one that hangs ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._carry = carried()
        self._name, self._hangs = name, False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any], seconds: float) -> Any:
        """Returns or raises what `function` does. Raises TimeoutError after `seconds`."""
        answer: Future[Any] = Future()
        self._calls.put((function, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            self._hangs = not answer.done()
            raise

    def end(self, last: Callable[[], None]) -> None:
        """Ends the thread after one more call. Errors of that call are logged, not raised."""
        try:
            if not self._hangs:
                self.call(last, WRITE)
        except Exception as error:  # noqa: BLE001 - what was written is written
            log.warning("closing failed after %s: %s: %s", self._name, type(error).__name__, error)
        finally:
            self._calls.put(None)

    def _run(self) -> None:
        self._carry()
        while (each := self._calls.get()) is not None:
            function, answer = each
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised by `call`, which waits for it
                answer.set_exception(error)
            # While this waits for the next call, nothing of the last one is held.
            del each, function, answer
