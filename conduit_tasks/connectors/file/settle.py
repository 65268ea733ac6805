"""Detection of files that somebody may still be writing, by watching them and not by clocks.

A file's times come from its server, which may be seconds behind this machine's clock: by these times a line that is
being written looks old. A file that looks old is therefore watched, for as long as it must not change, before its torn
end counts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.connectors.file.on_disk import SourceFile

LONGEST = 5.0
"""Limit of the seconds that one plan watches, for all its files together; after that their times are trusted."""
_LOOK = 0.05

Seen = tuple[int, int, int]
"""Inode, size and time of change."""


class Settling:
    """State of all files when a plan begins, to compare with a later one if the end of a file is in question.

    `settle`: seconds without a change after which the content counts as whole.
    """

    def __init__(self, settle: float, parts: list[str]) -> None:
        self._settle = settle
        self._watch = min(settle, LONGEST)
        self._began = time.monotonic()
        self._first = {part: _seen(part) for part in parts} if self._watch else {}

    def __call__(self, file: SourceFile) -> bool:
        """Returns whether the file has not changed for `settle` seconds. Waits if only watching can tell."""
        if not self._watch:
            return True
        age = time.time() - file.modified
        if age < self._settle and not (age < 0 and self._watch == self._settle):
            return False
        first = self._first.get(file.part)
        if first is None or first != (file.inode, file.size, file.changed):
            return False
        while _seen(file.part) == first:
            left = self._began + self._watch - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(_LOOK, left))
        return False


def _seen(part: str) -> Seen | None:
    try:
        stat = os.stat(settings().path(part))
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
