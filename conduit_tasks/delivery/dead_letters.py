"""What takes nacks: the project's store, a file, any record-wise destination, or the log, which drops (SEMANTICS C5).

A handler is only asked for nacks that the window accepted (C6), before they are confirmed (invariant 8). Where it
raises, the record is not acknowledged (T7). All of them may be given the same letter twice, after a crash: the store
replaces it; in a file and at a destination it is there twice, under the same id.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from conduit_tasks.delivery.port import DeadLetter
from conduit_tasks.errors import ConduitError, ConfigError, Unavailable
from conduit_tasks.pipeline.plugins import parse_plugin
from conduit_tasks.pipeline.topology import DeadLetterQueue, Delivery
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import RecordDestination

log = logging.getLogger(__name__)

SENDS = Delivery(retry=4, backoff_delay=0.2, timeout=10.0)
"""How letters are sent to a destination: five attempts, then the nack is not acknowledged."""


class Handler(Protocol):
    """What takes nacks that the window accepted."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Durable on return, idempotent; raises where it cannot (T7)."""


def dead_letter_handler(queue: DeadLetterQueue, *, root: str, pipeline: str, destination: str | None) -> Handler:
    """The handler that a `dead-letter-queue` names, its processors in front of it. `root`: of the project's own store.
    `destination` None: before the fan-out. Raises ConfigError where the plugin cannot take dead letters."""
    handler = _handler(queue, root=root, pipeline=pipeline, destination=destination)
    if not queue.processors:
        return handler
    from conduit_tasks.delivery.dead_letter_processors import Processed

    return Processed(handler, queue.processors)


def _handler(queue: DeadLetterQueue, *, root: str, pipeline: str, destination: str | None) -> Handler:
    if queue.plugin is None:
        from conduit_tasks.delivery.dead_letter_store import DeadLetterStore

        return DeadLetterStore(root, pipeline, destination)
    name = parse_plugin(queue.plugin).name
    if name == "log":
        return Drop()
    if name == "file":
        return FileHandler(queue.settings)
    from conduit_tasks.connectors.base import RecordDestination
    from conduit_tasks.connectors.registry import destination_class

    cls = destination_class(name)
    if not issubclass(cls, RecordDestination):
        raise ConfigError(
            f"dead-letter-queue of {pipeline}: plugin {name} writes in batches and keeps state, which dead letters "
            "have no place for; leave `plugin` out for the project's own store, or use file, log or http"
        )
    return DestinationHandler(cls, dict(queue.settings), name)


def as_dict(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON types: everything of C14."""
    record = letter.record
    return {
        "id": record.id,
        "micro_batch": letter.micro_batch,
        "seq": letter.seq,
        "ord": record.ordinal,
        "epoch": letter.epoch,
        "index": letter.index,
        "node": letter.node,
        "error": letter.error,
        "error_class": letter.error_class,
        "attempts": letter.attempts,
        "at": letter.at,
        "pipeline": record.origin.pipeline,
        "connector": record.origin.connector,
        "partition": record.origin.partition,
        "record": record.to_opencdc(),
    }


class Drop:
    """`plugin: builtin:log`: a warning for each, and that is all: at most once for failed records (C10)."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            log.warning(
                "dropped record %s (micro-batch %d, record %d): %s failed it after %d attempt(s) with %s: %s",
                letter.record.id,
                letter.micro_batch,
                letter.seq,
                letter.node,
                letter.attempts,
                letter.error_class,
                letter.error,
            )


class FileHandler:
    """`plugin: builtin:file`: a line of JSON for each, appended under a lock, fsynced; a torn last line is cut off.

    Setting `path`: the file, relative to the project's home.
    """

    def __init__(self, options: Any) -> None:
        if not options.get("path"):
            raise ConfigError("dead-letter-queue: plugin file needs the setting `path`")
        self._path = Path(settings().path(options["path"]))

    def store(self, letters: Sequence[DeadLetter]) -> None:
        import orjson

        from conduit_tasks.spool.durable import make_folders, sync_folder

        lines = b"".join(orjson.dumps(as_dict(letter), option=orjson.OPT_NON_STR_KEYS) + b"\n" for letter in letters)
        try:
            make_folders(self._path.parent)
            with self._path.open("a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = _cut_torn_line(file.fileno())
                try:
                    written = 0
                    while written < len(lines):
                        written += os.write(file.fileno(), lines[written:])
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), end)
                    raise
            sync_folder(self._path.parent)
        except OSError as error:
            raise ConduitError(
                f"dead letters cannot be written to {self._path}: {error}; make room or mend it"
            ) from error


def _cut_torn_line(fd: int) -> int:
    """Cuts what a crash left after the last whole line; the length of the file."""
    size = os.fstat(fd).st_size
    end = size
    while end:
        start = max(0, end - 65_536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)
    return end


class DestinationHandler:
    """Any record-wise destination: the letter is the payload of a record with the id of the failed one."""

    def __init__(self, cls: type[RecordDestination], options: dict[str, str], name: str) -> None:
        self._cls, self._options, self._name = cls, options, name
        cls(options)

    def store(self, letters: Sequence[DeadLetter]) -> None:
        asyncio.run(self._send(letters))

    async def _send(self, letters: Sequence[DeadLetter]) -> None:
        from conduit_tasks.delivery.retry import RetryPolicy
        from conduit_tasks.record.record import Record

        policy = RetryPolicy(SENDS)
        destination = self._cls(self._options)
        await destination.open(SENDS.timeout)
        try:
            for letter in letters:
                record = Record(
                    letter.record.position,
                    metadata={
                        "conduit.dlq.nack.error": letter.error,
                        "conduit.dlq.nack.node.id": letter.node,
                        "conduit.dlq.nack.error.class": letter.error_class,
                    },
                    key=letter.record.key,
                    after=as_dict(letter),
                    ordinal=letter.record.ordinal,
                    origin=letter.record.origin,
                )
                await self._send_one(destination, record, policy)
        finally:
            await destination.close()

    async def _send_one(self, destination: RecordDestination, record: Any, policy: Any) -> None:
        from conduit_tasks.delivery.single import send

        began = time.monotonic()
        outcome, attempts = await send(destination, record, policy, SENDS.timeout)
        if outcome.kind != "delivered":
            raise Unavailable(
                f"the dead-letter destination {self._name} did not take {record.id} in {attempts} attempt(s) and "
                f"{time.monotonic() - began:.1f} s: {outcome.message}",
                status=outcome.status,
            )
