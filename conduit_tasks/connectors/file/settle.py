"""Detection of files that somebody may still be writing (`settle`): by watching them and not by clocks, and by what
earlier plans of this machine saw.

A file's times come from its server, whose clock may be far from this machine's: by these times a line that is being
written looks old. So a torn end counts only once this machine has seen the file unchanged for `settle` seconds, by its
own clock. One plan watches for `LONGEST` seconds at most; if `settle` is longer, plans remember when the file was seen
first, and a later one takes the end.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.connectors.file.on_disk import SourceFile

log = logging.getLogger(__name__)

LONGEST = 5.0
"""Limit of the seconds that one plan watches, for all its files together."""
FOLDER = ".conduit/settling"
"""Folder of what plans remember: a small file for each file with a torn end."""
FORGET = 7 * 86_400.0
"""Seconds after which what was remembered is removed, beside `settle` itself; a file is then as if never seen."""
_LOOK = 0.05

Seen = tuple[int, int, int]
"""Inode, size and time of change."""


class Settling:
    """State of all files when a plan begins, to compare with a later one if the end of a file is in question.

    `settle`: seconds without a change after which the content counts as whole.
    """

    def __init__(self, settle: float, parts: list[str]) -> None:
        self._settle = settle
        self._began = time.monotonic()
        self._memory = _Memory(settle) if settle > LONGEST else None
        self._first = {part: _seen(part) for part in parts} if 0 < settle <= LONGEST else {}

    def __call__(self, file: SourceFile) -> bool:
        """Returns whether the file has not changed for `settle` seconds. Waits if only watching can tell, and if this
        plan watches long enough."""
        if not self._settle:
            return True
        state = (file.inode, file.size, file.changed)
        since = self._unchanged_since(file.part, state)
        if since is None or 0 <= time.time() - file.modified < self._settle:
            return False
        until = since + self._settle
        if until > self._began + LONGEST:
            return False
        while _seen(file.part) == state:
            left = until - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(_LOOK, left))
        return False

    def _unchanged_since(self, part: str, state: Seen) -> float | None:
        """Returns since when the file is known to be as it is, by `time.monotonic`; None if it has just changed."""
        if self._memory is not None:
            return self._memory.since(part, state)
        return self._began if self._first.get(part) == state else None


class _Memory:
    """Files with torn ends as this machine saw them first, for plans in other processes of it.

    The clock is that of the machine since its start, which nobody sets. Each machine, and each start of it, remembers
    for itself.
    """

    def __init__(self, settle: float) -> None:
        self._folder = Path(settings().path(FOLDER))
        self._forget = settle + FORGET
        self._tidied = False

    def since(self, part: str, state: Seen) -> float | None:
        """Returns when the file was first seen as it is; that is now if it was not. None if that cannot be kept."""
        from hashlib import sha256

        name = sha256(f"{_machine()}\n{settings().path(part)}".encode()).hexdigest()[:32]
        path, now = self._folder / f"{name}.json", time.monotonic()
        try:
            *known, since = json.loads(path.read_bytes())
            if tuple(known) == state and since <= now:
                return float(since)
        except (OSError, ValueError, TypeError):
            pass  # never seen, or cut off by a crash
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{name}.{os.getpid()}.tmp")
            aside.write_text(json.dumps([*state, now]))
            aside.replace(path)
            self._tidy(path.stat().st_mtime)
        except OSError as error:
            log.warning("%s: its last line has no end and is not taken: what it was cannot be kept (%s)", part, error)
            return None
        return now

    def _tidy(self, now: float) -> None:
        """Removes what is long past. `now`: by the clock of the folder's own server."""
        if self._tidied:
            return
        self._tidied = True
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another process tidies, too
                if now - entry.stat().st_mtime > self._forget:
                    os.unlink(entry.path)


def _machine() -> str:
    """Returns the name of this machine since its start, the same in all its processes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return socket.gethostname()


def _seen(part: str) -> Seen | None:
    try:
        stat = os.stat(settings().path(part))
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
