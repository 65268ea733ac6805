"""`file` as a destination: appends whole records, durably, cuts the file back to exactly the confirmed ones, and
refuses a file that is not the one of its state; or makes new files in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.file import ledger
from conduit_tasks.connectors.file.alone import alone
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.settings import settings
from conduit_tasks.spool.durable import make_folders, sync_folder

if TYPE_CHECKING:
    from conduit_tasks.connectors.file.folder import FileFolder, Piece
    from conduit_tasks.connectors.file.folder_shards import FolderShard

FORMS = ("payload", "opencdc")
"""Forms of a row of a table, as `arrow_rows.FORMS`, which is not imported before there is something to write."""
FILES = ("one", "many")
GUARD = 4096
"""Bytes before the confirmed end whose checksum tells whether the file is still the one that was written."""
_SDK_FORMAT = "sdk.record.format"


class FileDestination(BatchDestination):
    """State: {"path", "size": bytes confirmed, "owner", "crc": CRC-32 of up to 4 KiB before `size`}. On `open` the file
    is cut back to `size`, so that after a crash no line is duplicated or torn. Without a state, the existing content is
    kept.

    A write is durable (fsync) when it returns. A full disk raises Unavailable, after cutting back. With
    `format: parquet` or `files: many` the state is that of `folder`.
    """

    effectively_once = True

    spec = Spec(
        "file",
        "Appends records to a file, one per line, or writes Parquet files to a folder.",
        (
            Option("path", "the file, or the folder of files; relative to home; folders are created", required=True),
            Option(
                "format",
                "opencdc: the record as JSON; payload: the payload alone, JSON or raw bytes; parquet: files of rows",
                default="opencdc",
                choices=("opencdc", "payload", "parquet"),
            ),
            Option(
                "files",
                "of lines: one: `path` is a file that grows; many: `path` is a folder, and each write makes a file in "
                "it, so that several tasks can deliver (`parallelism`); parquet: always many",
                default="one",
                choices=FILES,
            ),
            Option(
                "rows",
                "parquet: payload: the payload's fields are the columns; opencdc: the whole record in fixed columns",
                default="payload",
                choices=FORMS,
            ),
            Option("partition-by", "parquet: fields of the payload, comma-separated, whose values become folders"),
            Option("rows-per-file", "of many files: rows of one, at most", default="500000"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.format = self.settings["format"]
        asked = self.settings.get(_SDK_FORMAT, "opencdc/json")
        if asked != "opencdc/json":
            raise ConfigError(
                f"file: option '{_SDK_FORMAT}' can only be opencdc/json, not '{asked}'; "
                "for the payload alone write format: payload"
            )
        self._fd: int | None = None
        self._size = 0
        self._owner = ""
        self._by = options.words(self.settings, "partition-by")
        if self._by and (self.format != "parquet" or self.settings["rows"] != "payload"):
            raise ConfigError("file: option 'partition-by' needs format parquet with rows payload")
        self._many = makes_files(self.settings)
        if self._many:
            self.chunk = options.integer(self.settings, "rows-per-file", least=1)  # type: ignore[misc]  # its own
        self._folder: FileFolder | None = None
        self._one: FolderShard | None = None
        """Writer of the shard, if this is one of several tasks."""
        self._tidy = ""
        """Micro-batch of which the folder has nothing that several tasks have left."""

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        """See BatchDestination: where there are many files, each write has some of its own."""
        if makes_files(settings):
            return ""
        return f"{super().one_task(settings)}; with `files: many` several tasks write files of their own"

    @property
    def path(self) -> Path:
        """Path of the file with links resolved: a file with two names belongs to one destination."""
        return Path(os.path.realpath(settings().path(self.settings["path"])))

    @property
    def _me(self) -> str:
        return f"{self.pipeline}/{self.connector}"

    def open(self, state: dict[str, Any] | None) -> None:
        """Cuts the file back to `state`. Raises Unavailable (locked by another process, no room, no permission), and
        ConfigError if the file is no longer the one of the state, so that cutting it would harm it."""
        self.close()
        path = self.path
        if self._many:
            self._open_folder(path, state)
            return
        if path.is_dir():
            raise ConfigError(
                f"{path} is a folder, and lines go to a file: name one in 'path', or set 'files: many', which makes "
                "files in the folder"
            )
        with alone(path, self.close, self._unavailable):
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
            self.still_ours()
            size = os.fstat(self._fd).st_size
            self._size = self._confirmed(path, size, state)
            if size != self._size:
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)

    def _open_folder(self, path: Path, state: dict[str, Any] | None) -> None:
        from conduit_tasks.connectors.file.folder import FileFolder

        by = self._me if self.pipeline else "part"
        end = "parquet" if self.format == "parquet" else "jsonl"
        self._folder, self._tidy = FileFolder(path, by, end, self.still_ours), ""
        if self.shard is None:
            self._folder.open(state)
            return
        from conduit_tasks.connectors.file.folder_shards import FolderShard

        # The same one again: it knows which write of its own has failed.
        self._one = self._one or FolderShard(self._folder, self.shard)
        self._one.open(state)

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

    def _guard(self, size: int) -> int:
        """Returns the checksum of the bytes before the confirmed end, so that another file is not cut in place of
        ours."""
        assert self._fd is not None
        return zlib.crc32(os.pread(self._fd, min(size, GUARD), max(0, size - GUARD)))

    def _harmed(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.path} {what}: it was shortened or replaced. Put it back, or move it away to begin a new one"
        )

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Appends every row, durably. Raises Refused if one cannot be a line or a row, Unavailable."""
        if self._folder is not None:
            pieces = self._pieces(rows)
            if self._one is not None:
                self._one.write(pieces, rows)
                return None
            self._tidied(self._folder, rows)
            return self._folder.write(pieces, rows)
        from conduit_tasks.connectors.file.lines import lines

        assert self._fd is not None, "open comes first"
        try:
            size = self._size
            for data in lines(rows, self.format):
                size += self._append(data, size)
            os.fsync(self._fd)
            guard = self._guard(size)
        except OSError as e:
            self._cut_back()
            raise self._unavailable(e) from e
        except Refused:
            self._cut_back()
            raise
        self._size = size
        return {
            "path": str(self.settings["path"]),
            "size": size,
            "owner": self._owner,
            "crc": guard,
        }

    def _pieces(self, rows: Rows) -> list[Piece]:
        """Returns the files of a write. Raises Refused, ConfigError."""
        if self.format == "parquet":
            from conduit_tasks.connectors.arrow_rows import written_rows
            from conduit_tasks.connectors.file.partitions import pieces

            return pieces(written_rows(rows, self.settings["rows"]), self._by)
        from conduit_tasks.connectors.file.folder import Piece
        from conduit_tasks.connectors.file.lines import write_lines

        return [Piece("", partial(write_lines, rows, self.format))]

    def _tidied(self, folder: FileFolder, rows: Rows) -> None:
        """Removes what several tasks left of a micro-batch that one task delivers, and which were not confirmed, or
        Redis has forgotten."""
        if not rows.seal or rows.epoch or rows.sealed == self._tidy:
            return
        from conduit_tasks.connectors.file.folder_shards import Shards

        try:
            Shards(folder, None).tidy(rows)
        except OSError as error:
            raise self._unavailable(error) from error
        self._tidy = rows.sealed

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

    def _unavailable(self, error: OSError) -> Unavailable:
        todo = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
        return Unavailable(f"{self.path} cannot be written: {error.strerror}; {todo}, and delivery goes on")

    def close(self) -> None:
        if self._one is not None:
            self._one.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def makes_files(settings: Mapping[str, str]) -> bool:
    """Returns whether each write makes files of its own in the folder `path`."""
    return settings.get("format") == "parquet" or settings.get("files") == "many"
