"""Folder of files of one task, for a destination that makes new files at each write: files are named in a ledger before
they exist, and what was not confirmed is removed.

A write is one file, or one per partition: `[<field>=<value>/…]<name>-<seal>-<micro-batch>-s<number of the
write>.<end>`, and numbers only grow. In order of names, files are in the order of their micro-batches, and behind those
of shards (`folder_shards`) that one task has finished. What is sent again by itself has the number alone. The files of
a write are named in a ledger (`.<name>.conduit`) before the first of them exists; `open` removes the files of a write
that was not confirmed. Readers see whole files only: each is written under another name, fsynced and renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from conduit_tasks.connectors.file.alone import alone, unavailable
from conduit_tasks.connectors.file.ledger import of_another
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.spool.durable import make_folders, replace_file, sync_folder

_NUMBER = re.compile(r"-(?:\d{16}-\d{10,}-s)?(\d{10})\.(?:parquet|jsonl)")
"""Behind a destination's name in the name of a file of one task: the number of its write, in older ones alone."""
LONGEST = 120
"""Characters of a name before the places in it: a file's name has 255 bytes at most."""


class Piece(NamedTuple):
    """One file of a write: its folder (empty, or with a `/` at its end), and what writes it to a path, which raises
    Refused and OSError."""

    folder: str
    write: Callable[[Path], None]


@dataclass(frozen=True)
class Ledger:
    """Last write that was begun: its number `n` and its `files`. `owner`: id of the writer, part of every state that it
    returns; it began behind the number `start`; `confirmed`: whether such a state came back. `by`: the destination that
    it is; `after`: state of another plugin or format that was found first (`ledger.of_another`)."""

    n: int
    files: list[str]
    owner: str | None = None
    start: int = 0
    confirmed: bool = False
    by: str | None = None
    after: str | None = None


class FileFolder:
    """State: {"n": number of the last confirmed write, "owner"}. One writer at a time, by a lock beside the ledger.
    Without a state, files that exist are kept, except those that this destination wrote and never confirmed.

    `by` (`<pipeline>/<destination>`) names the files, so that several destinations can share a folder. `end`: of their
    names, `parquet` or `jsonl`.
    """

    def __init__(self, folder: Path, by: str, end: str, still_ours: Callable[[], None]) -> None:
        self.folder, self.end, self.still_ours = folder, end, still_ours
        self._by = by
        self.name = _name(folder, by)
        self._path = folder / f".{self.name}.conduit"
        self._lock: int | None = None
        self._ledger = Ledger(0, [])
        self._n = 0

    def open(self, state: dict[str, Any] | None) -> None:
        """Removes files that were not confirmed. Raises Unavailable (locked, no room, no permission), ConfigError."""
        self.close()
        if self.folder.exists() and not self.folder.is_dir():
            raise Unavailable(
                f"{self.folder} is a file, and this destination makes files in a folder: give it another 'path', or "
                "move the file away"
            )
        with alone(self.folder, self.close):
            make_folders(self.folder)
            self._lock = os.open(self.folder / f".{self.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Invariant 4: a writer that stood still until its successor was done must not remove the successor's files.
            self.still_ours()
            self._n = self._confirmed(state)

    def _confirmed(self, state: dict[str, Any] | None) -> int:
        """Returns the number of the last confirmed write; sets the ledger for the next write, and removes the files of
        later ones."""
        told, after = _told(self._path), None
        if state is not None and "n" not in state:
            after, state = of_another(state), None
        if told is None:
            # Nothing was begun here, or the whole folder was moved away: numbers go on.
            told = Ledger(0 if state is None else int(state["n"]), [], None if state is None else state.get("owner"))
        theirs = None if state is None else state.get("owner")
        if theirs and told.owner and theirs != told.owner:
            raise ConfigError(
                f"the files {self.name}-*.{self.end} of {self.folder} were written by {told.by or 'another one'} "
                f"since; give each destination a folder of its own, then move the files and {self._path.name} away to "
                "begin again here"
            )
        if state is not None:
            n = int(state["n"])
            told = replace(told, owner=told.owner or theirs or secrets.token_hex(8), confirmed=True)
        elif told.confirmed or told.by not in (None, self._by) or after != told.after:
            n = told.n
            told = Ledger(n, [], secrets.token_hex(8), start=n, after=after)
        else:
            n = told.start
            told = replace(told, owner=told.owner or secrets.token_hex(8))
        self._take_away(told, n)
        self._ledger = replace(told, by=self._by)
        if (
            self._ledger.owner != (before := _told(self._path) or Ledger(0, [])).owner
            or told.confirmed != before.confirmed
        ):
            self._keep(self._ledger)
        return n

    def _keep(self, ledger: Ledger) -> None:
        replace_file(self._path, orjson.dumps(asdict(ledger)))

    def _take_away(self, ledger: Ledger, n: int) -> None:
        """Removes the files of writes behind the number `n`."""
        if ledger.n <= n:
            return
        if ledger.n == n + 1:
            for name in ledger.files:
                self.remove(self.folder / name)
                self.remove(_aside(self.folder / name))
            return
        # The state is an older one (restored after a loss of Redis): everything behind it comes again.
        for path in self.folder.rglob(f"*{self.name}-*"):
            # What was not finished is beside it, as `.<name>.tmp`.
            name = path.name.removeprefix(".").removesuffix(".tmp")
            found = _NUMBER.fullmatch(name.removeprefix(self.name)) if name.startswith(self.name) else None
            if found and int(found[1]) > n:
                self.remove(path)

    def remove(self, path: Path) -> None:
        """Removes a file, durably."""
        path.unlink(missing_ok=True)
        if path.parent.exists():
            sync_folder(path.parent)

    def write(self, pieces: Sequence[Piece], rows: Rows) -> dict[str, Any]:
        """Writes the pieces of these rows, durable on return. Raises Refused, Unavailable."""
        n = self._n + 1
        of = f"{rows.sealed}-s" if rows.seal else ""
        name = f"{self.name}-{of}{n:010d}.{self.end}"
        try:
            self.check_names([self.folder / piece.folder / name for piece in pieces])
            self._keep(replace(self._ledger, n=n, files=[str(Path(piece.folder) / name) for piece in pieces]))
            for piece in pieces:
                self.put(self.folder / piece.folder, name, piece.write)
        except OSError as error:
            raise unavailable(self.folder, error) from error
        self._n = n
        return {"n": n, "owner": self._ledger.owner}

    def put(self, folder: Path, name: str, write: Callable[[Path], None]) -> None:
        """Writes one file, durably, which is seen as a whole or not at all. Raises Refused, OSError."""
        make_folders(folder)
        aside = _aside(folder / name)
        try:
            write(aside)
            fd = os.open(aside, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            aside.replace(folder / name)
        except (OSError, Refused):
            aside.unlink(missing_ok=True)
            raise
        sync_folder(folder)

    def check_names(self, paths: Sequence[Path]) -> None:
        """Raises Refused if a name is too long. Called before anything is written, the ledger included: a file whose
        name cannot be created cannot be removed either."""
        longest, whole = (os.pathconf(self.folder, limit) for limit in ("PC_NAME_MAX", "PC_PATH_MAX"))
        for path in paths:
            aside = _aside(path)
            if len(os.fsencode(aside)) >= whole or any(len(os.fsencode(each)) > longest for each in aside.parts):
                raise Refused(f"{path} is too long for a file's name; a value of 'partition-by' in it?")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _name(folder: Path, by: str) -> str:
    """Returns how the names of a destination's files begin, another one for each: an id that has other characters than
    `A-Z a-z 0-9 _ -`, or is long, adds a digest, unless an older version has begun without."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", by.replace("/", ".", 1))
    if re.fullmatch(r"[\w-]+(/[\w-]+)?", by, re.ASCII) and len(plain) <= LONGEST:
        return plain
    before = _told(folder / f".{plain}.conduit") if len(plain) <= LONGEST else None
    if before is not None and before.by in (None, by):
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(by.encode()).hexdigest()[:12]}"


def _told(path: Path) -> Ledger | None:
    try:
        return Ledger(**orjson.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError):
        raise ConfigError(
            f"{path} is damaged: which files of {path.parent} are confirmed cannot be told. Remove it to keep all that "
            "are there"
        ) from None


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
