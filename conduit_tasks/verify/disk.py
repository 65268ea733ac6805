"""Losses of a power cut: writes that were not fsynced, and names whose folder was not (POSIX)."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

DATABASES = (".db", ".db-journal", ".db-wal", ".db-shm")
"""Suffixes of database files, which make themselves durable by calls of their own."""


@dataclass(frozen=True)
class Inode:
    """A change of a folder's entries that no fsync has made durable yet; `content`: of the file that it removed."""

    kind: str
    path: str
    source: str = ""
    content: bytes | None = None


class Disk:
    """The durable state of the files below `root`, kept if it differs from the current one."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self._contents: dict[str, bytes] = {}
        self._entries: list[Inode] = []

    def holds(self, path: str) -> bool:
        """Returns whether a path is below `root`, and no database."""
        return (path == self.root or path.startswith(self.root + "/")) and not path.endswith(DATABASES)

    def changing(self, path: str) -> None:
        """Notes that the file is about to be written, or cut."""
        if path not in self._contents:
            self._contents[path] = _read(path) or b""

    def made(self, path: str) -> None:
        """Notes that the file, or the folder (`folder/`), was created."""
        self._entries.append(Inode("made", path))
        if not path.endswith("/"):
            self._contents[path] = b""

    def moving(self, source: str, path: str) -> None:
        """Notes that `source` is about to replace `path`."""
        self._entries.append(Inode("moved", path, source, self._contents.pop(path, _read(path))))
        if source in self._contents:
            self._contents[path] = self._contents.pop(source)

    def removing(self, path: str) -> None:
        """Notes that the file, or the folder (`folder/`), is about to be removed."""
        held = None if path.endswith("/") else self._contents.pop(path, _read(path))
        self._entries.append(Inode("removed", path, content=held))

    def synced(self, path: str) -> None:
        """Notes an fsync of a file or folder."""
        if os.path.isdir(path):
            self._entries = [e for e in self._entries if os.path.dirname(e.path.rstrip("/")) != path]
        else:
            self._contents.pop(path, None)

    def lose(self) -> None:
        """Cuts the power and brings it back: only the durable state is left."""
        for path, content in self._contents.items():
            if os.path.exists(path):
                Path(path).write_bytes(content)
        for entry in reversed(self._entries):
            self._undo(entry)
        self._contents, self._entries = {}, []

    def _undo(self, entry: Inode) -> None:
        path = Path(entry.path)
        if entry.kind == "made":
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        elif entry.kind == "moved":
            if path.exists() and Path(entry.source).parent.is_dir():
                path.rename(entry.source)
            if entry.content is not None and path.parent.is_dir():
                path.write_bytes(entry.content)
        elif entry.path.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        elif entry.content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(entry.content)


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None
