"""One file to which lines are appended: cut back to exactly the confirmed ones, and left alone if it is not the one of
the state."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from conduit_tasks.connectors.file import ledger
from conduit_tasks.connectors.file.alone import alone, unavailable
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.spool.durable import make_folders, sync_folder

GUARD = 4096
"""Bytes before the confirmed end whose checksum tells whether the file is still the one that was written."""

BLOCK = 64 << 10
"""Bytes read at a time to find the end of a line."""


class OneFile:
    """State: {"path", "size": bytes confirmed, "owner", "crc": CRC-32 of up to 4 KiB before `size`}. `open` cuts the
    file back to `size`, so that after a crash no line is duplicated or torn. Without a state, the existing content is
    kept.

    `path`: with links resolved. `said`: as the settings name it. `me`: `<pipeline>/<destination>`.
    """

    def __init__(self, path: Path, said: str, me: str, still_ours: Callable[[], None]) -> None:
        self._path, self._said, self._me, self._still_ours = path, said, me, still_ours
        self._fd: int | None = None
        self._size = 0
        self._owner = ""

    def open(self, state: dict[str, Any] | None) -> None:
        """Cuts the file back to `state`. Raises Unavailable (locked by another process, no room, no permission), and
        ConfigError if the file is no longer the one of the state, so that cutting it would harm it."""
        self.close()
        path = self._path
        if path.is_dir():
            raise Unavailable(
                f"{path} is a folder, and lines go to a file: name one in 'path', or set 'files: many', which makes "
                "files in the folder"
            )
        with alone(path, self.close):
            make_folders(path.parent)
            existed = path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not existed or state is None:
                # The process that created it may have died before its entry was durable; once confirmed, it must be.
                sync_folder(path.parent)
            # A holder that lost its lease may still be writing; two writers never share the file.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Invariant 4: a worker that was paused until its successor was done must not cut off the successor's
            # records.
            self._still_ours()
            size = os.fstat(self._fd).st_size
            self._size = self._confirmed(path, size, state)
            if size != self._size:
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)

    def _confirmed(self, path: Path, size: int, state: dict[str, Any] | None) -> int:
        """Returns the confirmed length; sets the owner. Raises ConfigError if the file does not fit the state."""
        kept = ledger.read(path)
        theirs: str | None = None if state is None else state.get("owner")
        if state is not None and "size" not in state:
            theirs, state = ledger.of_another(state), None
        if kept is not None and kept.previous == theirs and (theirs or kept.by in (None, self._me)):
            # Nothing of this owner was confirmed: all that it wrote is cut off.
            if not size and kept.start:
                kept = ledger.begin(path, theirs, 0, self._me)
            if size < kept.start:
                raise self._harmed(f"has {size} bytes, but {kept.start} were there and confirmed")
            self._owner = kept.owner
            return kept.start
        if state is None:
            if kept is not None and kept.by == self._me:
                # It is not known what of ours was confirmed: all whole lines stay.
                size = self._whole(size)
            self._owner = ledger.begin(path, theirs, size, self._me).owner
            return size
        confirmed = int(state["size"])
        if not size and confirmed:
            # The file was moved away, as log rotation does: new records begin a new file.
            self._owner = ledger.begin(path, theirs, 0, self._me).owner
            return 0
        if kept is not None and kept.owner != theirs:
            raise ConfigError(
                f"{path} was written by another destination{f' ({kept.by})' if kept.by else ''} since; give each "
                "destination a path of its own, then move the file away to begin a new one here"
            )
        if size < confirmed:
            raise self._harmed(f"has {size} bytes, but {confirmed} were written and confirmed")
        if "crc" in state and state["crc"] != self._guard(confirmed):
            raise self._harmed(f"does not hold the {confirmed} bytes that were written and confirmed")
        if kept is not None:
            ledger.confirm(path, kept)
        self._owner = state["owner"]
        return confirmed

    def _whole(self, size: int) -> int:
        """Returns the end of the last whole line."""
        assert self._fd is not None
        while size:
            block = os.pread(self._fd, min(size, BLOCK), size - min(size, BLOCK))
            if (end := block.rfind(b"\n")) >= 0:
                return size - len(block) + end + 1
            size -= len(block)
        return 0

    def _guard(self, size: int) -> int:
        """Returns the checksum of the bytes before the confirmed end, so that another file is not cut in place of
        ours."""
        assert self._fd is not None
        return zlib.crc32(os.pread(self._fd, min(size, GUARD), max(0, size - GUARD)))

    def _harmed(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._path} {what}: it was shortened or replaced. Put it back, or move it away to begin a new one"
        )

    def write(self, lines: Iterable[memoryview]) -> dict[str, Any]:
        """Appends the lines, durable on return. Raises Unavailable, and Refused if `lines` does, after cutting back."""
        assert self._fd is not None, "open comes first"
        try:
            size = self._size
            for data in lines:
                size += self._append(data, size)
            os.fsync(self._fd)
            guard = self._guard(size)
        except OSError as e:
            self._cut_back()
            raise unavailable(self._path, e) from e
        except Refused:
            self._cut_back()
            raise
        self._size = size
        return {"path": self._said, "size": size, "owner": self._owner, "crc": guard}

    def _append(self, data: memoryview, at: int) -> int:
        assert self._fd is not None
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], at + done)
        return done

    def _cut_back(self) -> None:
        """Cuts off a torn line, which readers must not see and a full disk has no room for. If this fails, `open` cuts
        it."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
