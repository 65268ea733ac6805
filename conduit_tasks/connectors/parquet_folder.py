"""A folder of Parquet files that goes back to exactly what was confirmed.

Each write makes its files anew, one per partition: `[<field>=<value>/…]<name>-<number of the write>.parquet`, and
numbers only grow. What a write is about to make stands in a ledger (`.<name>.conduit`) before the first of its files
does; `open` removes the files of a write that was not confirmed. Readers see whole files only: written to the side,
fsynced, renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.spool.durable import make_folders, replace_file, sync_folder

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The partition of rows without a value, as Hive and Spark name it."""
PARTITIONS = 1_000
"""Files that one write may make."""


@dataclass(frozen=True)
class Ledger:
    """`n`, `files`: the last write that was begun. `owner`: in every state of who writes them, which began behind the
    number `start`; `confirmed`: once such a state came back. `by`: which destination that is."""

    n: int
    files: list[str]
    owner: str | None = None
    start: int = 0
    confirmed: bool = False
    by: str | None = None


class ParquetFolder:
    """State: {"n": number of the last confirmed write, "owner"}. One writer at a time, by a lock beside the ledger.
    Without a state, what is there already is kept, but for what this destination wrote and never confirmed.

    `by` (`<pipeline>.<destination>`) names the files, so that several destinations can share a folder. `partition_by`:
    fields whose values become folders, left out of the files as Hive does.
    """

    def __init__(self, folder: Path, by: str, partition_by: Sequence[str], still_ours: Callable[[], None]) -> None:
        self._folder, self._partition_by, self._still_ours = folder, tuple(partition_by), still_ours
        self._by = by
        self._name = re.sub(r"[^A-Za-z0-9_.-]", "_", by.replace("/", ".", 1))
        self._path = folder / f".{self._name}.conduit"
        self._lock: int | None = None
        self._ledger = Ledger(0, [])
        self._n = 0

    def open(self, state: dict[str, Any] | None) -> None:
        """Removes what was not confirmed. Raises Unavailable (locked, no room, no permission), ConfigError."""
        self.close()
        try:
            make_folders(self._folder)
            self._lock = os.open(self._folder / f".{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Invariant 4: one that stood still until its successor was done must not take that one's files away.
            self._still_ours()
            self._n = self._confirmed(state)
        except BlockingIOError as error:
            self.close()
            raise Unavailable(f"{self._folder} is being written by another process; it must end first") from error
        except OSError as error:
            self.close()
            raise self._unavailable(error) from error
        except BaseException:
            self.close()
            raise

    def _confirmed(self, state: dict[str, Any] | None) -> int:
        """The number that is confirmed; sets the ledger as the next write finds it, and removes what lies behind."""
        told = self._told()
        if told is None:
            # Nothing was begun here, or the folder was moved away whole: numbers go on.
            told = Ledger(0 if state is None else int(state["n"]), [], None if state is None else state.get("owner"))
        theirs = None if state is None else state.get("owner")
        if theirs and told.owner and theirs != told.owner:
            raise ConfigError(
                f"the files {self._name}-*.parquet of {self._folder} were written by {told.by or 'another one'} since; "
                f"give each destination a folder of its own, then move the files and {self._path.name} away to begin "
                "anew here"
            )
        if state is not None:
            n = int(state["n"])
            told = replace(told, owner=told.owner or theirs or secrets.token_hex(8), confirmed=True)
        elif told.confirmed or told.by not in (None, self._by):
            n = told.n
            told = Ledger(n, [], secrets.token_hex(8), start=n)
        else:
            n = told.start
            told = replace(told, owner=told.owner or secrets.token_hex(8))
        self._take_away(told, n)
        self._ledger = replace(told, by=self._by)
        if self._ledger.owner != (before := self._told() or Ledger(0, [])).owner or told.confirmed != before.confirmed:
            self._keep(self._ledger)
        return n

    def _told(self) -> Ledger | None:
        try:
            return Ledger(**orjson.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise ConfigError(
                f"{self._path} is damaged: which files of {self._folder} are confirmed cannot be told. Remove it to "
                "keep all that are there"
            ) from None

    def _keep(self, ledger: Ledger) -> None:
        replace_file(self._path, orjson.dumps(asdict(ledger)))

    def _take_away(self, ledger: Ledger, n: int) -> None:
        """The files of what was written behind the number `n`."""
        if ledger.n <= n:
            return
        if ledger.n == n + 1:
            for name in ledger.files:
                self._remove(self._folder / name)
                self._remove(_aside(self._folder / name))
            return
        # The state is an older one (brought back after a loss of Redis): everything behind it comes again.
        for path in self._folder.rglob(f"{self._name}-*.parquet"):
            found = re.fullmatch(r"-(\d{10})\.parquet", path.name.removeprefix(self._name))
            if found and int(found[1]) > n:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if path.parent.exists():
            sync_folder(path.parent)

    def write(self, table: pa.Table) -> dict[str, Any]:
        """One file per partition, durable on return. Raises Refused, Unavailable."""
        n = self._n + 1
        parts = self._parts(table)
        name = f"{self._name}-{n:010d}.parquet"
        try:
            self._check_names([self._folder / folder / name for folder, _ in parts])
            self._keep(replace(self._ledger, n=n, files=[str(Path(folder) / name) for folder, _ in parts]))
            for folder, rows in parts:
                self._put(self._folder / folder, name, rows)
        except OSError as error:
            raise self._unavailable(error) from error
        self._n = n
        return {"n": n, "owner": self._ledger.owner}

    def _put(self, folder: Path, name: str, rows: pa.Table) -> None:
        make_folders(folder)
        aside = _aside(folder / name)
        try:
            pq.write_table(rows, aside, compression="zstd")
            fd = os.open(aside, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            aside.replace(folder / name)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            aside.unlink(missing_ok=True)
            raise Refused(f"these rows are no Parquet: {error}") from None
        sync_folder(folder)

    def _parts(self, table: pa.Table) -> list[tuple[str, pa.Table]]:
        """(folder, rows in their order) per combination of values."""
        missing = [name for name in self._partition_by if name not in table.column_names]
        if missing:
            raise Refused(f"there is no field '{missing[0]}' to partition by")
        parts = [("", table)]
        for name in self._partition_by:
            parts = [(f"{folder}{each}/", rows) for folder, of in parts for each, rows in _by(of, name)]
        if len(parts) > PARTITIONS:
            raise ConfigError(f"{len(parts)} partitions in one write, more than {PARTITIONS}: choose a coarser field")
        kept = [name for name in table.column_names if name not in self._partition_by]
        return [(folder, rows.select(kept)) for folder, rows in parts]

    def _check_names(self, paths: Sequence[Path]) -> None:
        """Before anything is begun, the ledger too: a name that cannot be made cannot be taken away either."""
        longest, whole = (os.pathconf(self._folder, limit) for limit in ("PC_NAME_MAX", "PC_PATH_MAX"))
        for path in paths:
            aside = _aside(path)
            if len(os.fsencode(aside)) >= whole or any(len(os.fsencode(each)) > longest for each in aside.parts):
                raise Refused(
                    f"a value is too long for a folder's name (partition-by: {', '.join(self._partition_by)})"
                )

    def _unavailable(self, error: OSError) -> Unavailable:
        todo = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
        return Unavailable(f"{self._folder} cannot be written: {error.strerror}; {todo}, and delivery goes on")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _by(table: pa.Table, name: str) -> list[tuple[str, pa.Table]]:
    column = table.column(name)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise Refused(f"field '{name}' holds no value that can name a partition")
    if pa.types.is_string(column.type):
        # An empty text cannot be told from none in a folder's name.
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    # Rows are apart where their folders are, not where they are equal: NaN is not to itself, -0.0 is to 0.0.
    codes = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    folders: dict[str, list[int]] = {}
    for code, value in enumerate(codes.dictionary.to_pylist()):
        folders.setdefault(f"{quote(name, safe='')}={_as_folder(value)}", []).append(code)
    return [
        (folder, table.filter(pc.is_in(codes.indices, pa.array(of, codes.indices.type))))
        for folder, of in folders.items()
    ]


def _as_folder(value: Any) -> str:
    """As a path holds it: no value of `..` or with a slash in it leads elsewhere, and none is taken for no value."""
    if value is None:
        return NULL
    text = quote(str(value), safe=" ").replace(".", "%2E")
    return text if text != NULL else text.replace("_", "%5F", 1)
