"""Source files on disk: which ones a glob finds, under which name, the checksum that guards a position, the life of a
replaced file, and where its records start."""

from __future__ import annotations

import glob
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from conduit_tasks.connectors.file.framing import LineFraming
from conduit_tasks.errors import Missing, SourceError
from conduit_tasks.settings import settings

GUARD = 4096
"""Bytes before an offset whose checksum tells whether the file is still the one that was read."""

MAX_RECORD = 64 << 20
"""Limit of a record in bytes: no buffer is unbounded (C13), and an unclosed quote would take the rest of the file."""

_LIFE = re.compile(r"#([0-9]+)\Z")
_BOM = b"\xef\xbb\xbf"


@lru_cache(maxsize=4)
def _home(home: Path) -> str:
    """Returns the resolved home, once and not for every file of a folder."""
    return str(home.resolve()) + os.sep


def path_of(part: str) -> str:
    """Returns the path of a part."""
    return os.path.join(_home(settings().home), part)


def parts_of(pattern: str) -> list[str]:
    """Returns the files of a glob, in name order, as part names: relative to home if they lie below it, with `/`.

    A path without wildcards is its own only match, whether it exists or not. If several names match a file, because of
    links to it or to folders above it, the name that is no link counts. A name may be no text: see `named`.
    """
    home = _home(settings().home)
    full = settings().path(pattern)
    names = _files(glob.glob(full, recursive=True)) if glob.has_magic(full) else [full]
    return sorted(name[len(home) :] if name.startswith(home) else name for name in names)


def named(parts: Iterable[str]) -> tuple[list[str], SourceError | None]:
    """Returns the parts whose names are UTF-8, and the error of the first that is not: no position could hold its name,
    so it has no place in the order, and holds up no other file."""
    found, trouble = [], None
    for part in parts:
        try:
            part.encode()
        except UnicodeEncodeError:
            trouble = trouble or SourceError(f"the name of {part!a} is not UTF-8, so it is left out; rename the file")
        else:
            found.append(part)
    return found, trouble


def _files(found: list[str]) -> list[str]:
    seen: dict[tuple[int, int], list[str]] = {}
    for name in found:
        try:
            status = os.stat(name)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            seen.setdefault((status.st_dev, status.st_ino), []).append(name)
    return [name for names in seen.values() for name in (names if len(names) == 1 else _unlinked(names))]


def _unlinked(names: list[str]) -> list[str]:
    """Returns the names of one file that are no links. If all names of a path are links, it returns the shortest: in a
    folder that links to itself, all others contain it."""
    by_file: dict[str, str] = {}
    for name in sorted(names, key=lambda n: (os.path.realpath(n) != n, len(n), n)):
        by_file.setdefault(os.path.realpath(name), name)
    return list(by_file.values())


def place_of(part: str, life: int) -> str:
    """Returns the prefix of positions in a file: its name, and the number of its life from the second on. The first
    life has its number, too, if the name itself ends like one (`a#1`), so that no two prefixes are the same."""
    return f"{part}#{life}" if life or _LIFE.search(part) else part


def part_and_life(place: str) -> tuple[str, int]:
    """Returns the part and the life of a place: the reverse of `place_of`."""
    if (found := _LIFE.search(place)) is None:
        return place, 0
    return place[: found.start()], int(found[1])


def grown(part: str, token: Any | None) -> bool:
    """Returns whether the file may hold more than a position says, by its size alone; False if it is gone."""
    try:
        size = os.stat(path_of(part)).st_size
    except OSError:
        return False
    if token is None:
        return size > 0
    if "rows" in token:
        return bool(token["row"] < token["rows"] or size != token["size"])
    return size > int(token["offset"])


class SourceFile:
    """An open file. Raises SourceError, which names it, also if it does not match a position."""

    life = 0
    """Number of times that the part has begun again, as another file (`missing: skip`)."""

    def __init__(self, part: str) -> None:
        self.part = part
        try:
            # Does not wait for a writer, as opening a named pipe would.
            self.fd = os.open(path_of(part), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise self.missing("was removed") from None
        except OSError as e:
            raise self.error(f"cannot be opened: {e.strerror}; make it readable, or correct 'path'") from e
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            hint = "; for the files in it write a glob" if stat.S_ISDIR(status.st_mode) else ""
            raise self.error(f"is no regular file, to which a position could point; correct 'path'{hint}")
        self.size, self.modified = status.st_size, status.st_mtime
        self.inode, self.changed = status.st_ino, status.st_mtime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def error(self, what: str) -> SourceError:
        return SourceError(f"{self.part} {what}")

    def missing(self, what: str) -> Missing:
        """Returns the error for a file that is not the planned one, whose content can no longer be read."""
        return Missing(f"{self.part} {what}. Put its former content back, or write new data to a file of a new name")

    @property
    def place(self) -> str:
        """Prefix of the positions of its records; positions of a later life differ from all earlier ones."""
        return place_of(self.part, self.life)

    def bytes_at(self, start: int, length: int) -> bytes:
        """Returns `length` bytes from `start`, fewer at the end of the file."""
        chunks = []
        while length > 0:
            try:
                chunk = os.pread(self.fd, length, start)
            except OSError as e:
                raise self.error(f"cannot be read at byte {start}: {e.strerror}") from e
            if not chunk:
                break
            chunks.append(chunk)
            start, length = start + len(chunk), length - len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def token(self, offset: int) -> dict[str, int]:
        """Returns the position `offset`, with the checksum of the bytes before it."""
        before = self.bytes_at(max(0, offset - GUARD), min(offset, GUARD))
        return {"offset": offset, "crc": zlib.crc32(before), **self.lived()}

    def lived(self) -> dict[str, int]:
        """Returns the part of a token that holds its life; empty for the first."""
        return {"life": self.life} if self.life else {}

    def check(self, token: Any) -> int:
        """Returns the offset of a token. Raises Missing if it does not match this file (any more). A token that a user
        set may lack the checksum."""
        offset = int(token["offset"])
        if self.size < offset or ("crc" in token and token["crc"] != self.token(offset)["crc"]):
            raise self.missing(
                f"was shortened or replaced after {offset} bytes of it were read, so that what is new in it cannot be "
                "told"
            )
        return offset

    def first_record(self, framing: LineFraming, settled: Callable[[], bool]) -> tuple[int, int] | None:
        """Returns start and end of the file's first record; None if it is not whole yet. `settled`: called if the file
        ends before the record does."""
        length = 64 << 10
        start = self.beginning()
        while True:
            data = self.bytes_at(start, length)
            whole = len(data) < length
            bounds = framing.bounds(data, False)
            if whole and not len(bounds.ends) and len(framing.bounds(data, True).ends) and settled():
                bounds = framing.bounds(data, True)
            if len(bounds.ends):
                return start + int(bounds.starts[0]), start + int(bounds.ends[0])
            if whole:
                return None
            length = self.grown(start, length)

    def beginning(self) -> int:
        """Returns the offset of the text: behind a byte order mark."""
        return len(_BOM) if self.bytes_at(0, len(_BOM)) == _BOM else 0

    def grown(self, start: int, length: int) -> int:
        """Returns the next length to try if `length` bytes from `start` hold no whole record. Raises SourceError if
        `length` is MAX_RECORD already."""
        if length >= MAX_RECORD:
            raise self.error(
                f"has no end of a record within {MAX_RECORD >> 20} MiB from byte {start}; "
                "is a quote not closed there, or is the file not what 'format' says? Correct it, or take the file away"
            )
        return min(2 * length, MAX_RECORD)
