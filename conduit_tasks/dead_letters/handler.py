"""Handlers of nacks, as a `dead-letter-queue` names them: our own store, and beside it a file or any destination's
plugin; or the log, which drops (SEMANTICS C5).

A handler only gets nacks that the window accepted (C6), before they are confirmed (invariant 8). If it raises, the
record is not acknowledged (T7). After a crash a handler may get the same letter twice: the store replaces it; a plugin
has it twice under the same id, unless it can recognise duplicates.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from conduit_tasks.connectors.plugins import plugin_name
from conduit_tasks.dead_letters.letter_record import as_dict, letter_record
from conduit_tasks.dead_letters.plugin import PluginHandler
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.settings import settings
from conduit_tasks.topology import DeadLetterQueue
from conduit_tasks.waits import lock

log = logging.getLogger(__name__)


class Handler(Protocol):
    """Handler of nacks that the window accepted."""

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Stores letters, durable on return, idempotent. Raises if it cannot (T7)."""


def dead_letter_handler(queue: DeadLetterQueue, *, root: str, pipeline: str, destination: str | None) -> Handler:
    """Returns the handler that a `dead-letter-queue` names, its processors in front of it. `root`: of the project's own
    store. `destination` None: before the fan-out. Raises ConfigError if the plugin cannot take dead letters."""
    handler = _handler(queue, root=root, pipeline=pipeline, destination=destination)
    if not queue.processors:
        return handler
    from conduit_tasks.dead_letters.processors import Processed

    return Processed(handler, queue.processors)


def _handler(queue: DeadLetterQueue, *, root: str, pipeline: str, destination: str | None) -> Handler:
    name = plugin_name(queue.plugin) if queue.plugin is not None else None
    if name == "log":
        return Drop()
    from conduit_tasks.connectors.file.destination import makes_files
    from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore

    ours = DeadLetterStore(root, pipeline, destination)
    if name is None:
        return ours
    if name == "file" and not makes_files(queue.settings):
        return Copied(ours, FileHandler(queue.settings))
    from conduit_tasks.connectors.connection import resolved
    from conduit_tasks.connectors.registry import destination_class

    cls = destination_class(name)
    settings = dict(resolved(cls.spec, queue.settings))
    return Copied(ours, PluginHandler(cls, settings, pipeline, destination or BEFORE_FAN_OUT))


class Copied:
    """Our own store, from which letters are redriven, then a plugin: a nack is confirmed when both have its letter."""

    def __init__(self, ours: Handler, theirs: Handler) -> None:
        self._ours, self._theirs = ours, theirs

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """See Handler."""
        self._ours.store(letters)
        self._theirs.store(letters)


class Drop:
    """`plugin: builtin:log`: logs a warning for each letter and drops it: at most once for failed records (C10)."""

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
    """`plugin: builtin:file`: appends a line of JSON for each letter, under a lock, fsynced; a torn last line is cut
    off.

    Setting `path`: the file, relative to the project's home. With `format: opencdc` a line is the letter's record.
    Several destinations, and processes, may write to one file: nothing but a torn line is ever cut off.
    """

    def __init__(self, options: Any) -> None:
        if not options.get("path"):
            raise ConfigError("dead-letter-queue: plugin file needs the setting `path`")
        self._path = Path(settings().path(options["path"]))
        self._opencdc = options.get("format") == "opencdc"

    def store(self, letters: Sequence[DeadLetter]) -> None:
        from conduit_tasks.record import jsons
        from conduit_tasks.spool.durable import make_folders, sync_folder

        forms: list[dict[str, Any]] = list(map(as_dict, letters))
        if self._opencdc:
            forms = [letter_record(letter, form).to_opencdc() for letter, form in zip(letters, forms)]
        lines = b"".join(jsons.dumps(form) + b"\n" for form in forms)
        try:
            make_folders(self._path.parent)
            with self._path.open("a+b", buffering=0) as file:
                lock(file)
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
                f"dead letters cannot be written to {self._path}: {error}; make room or fix it"
            ) from error


def _cut_torn_line(fd: int) -> int:
    """Cuts off what a crash left after the last whole line. Returns the length of the file after that."""
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
