"""`file` as a destination: appends lines to one file, or makes files of lines or of Parquet in a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.file.one_file import OneFile
from conduit_tasks.connectors.rows import Rows, ShardName
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.connectors.file.folder import Piece
    from conduit_tasks.connectors.file.folder_shards import FolderShard, WholeFolder

FORMS = ("payload", "opencdc")
"""Forms of a row of a table, as `arrow_rows.FORMS`, which is not imported before there is something to write."""
FILES = ("one", "many")
OTHER = "other"
"""Field of a state that keeps what was confirmed before `files` or `format` changed: if they change back, the writer
goes on there, and takes back what it had written and nobody confirmed."""
_SDK_FORMAT = "sdk.record.format"


class FileDestination(BatchDestination):
    """The state is that of `OneFile`, or of `FileFolder` if there are many files and one task.

    A write is durable (fsync) when it returns. A full disk raises Unavailable, and leaves no part of the write.
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
        self._by = options.words(self.settings, "partition-by")
        if self._by and (self.format != "parquet" or self.settings["rows"] != "payload"):
            raise ConfigError("file: option 'partition-by' needs format parquet with rows payload")
        self._many = self.tidies = makes_files(self.settings)
        if self._many:
            self.chunk = options.integer(self.settings, "rows-per-file", least=1)  # type: ignore[misc]  # its own
        self._writer: OneFile | WholeFolder | FolderShard | None = None
        self._of: ShardName | None = None
        """Shard that the writer is of."""
        self._other: dict[str, Any] | None = None
        """State of the files, if `files` or `format` has changed to one file; of that, if it has changed to files."""

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
        """Goes back to `state`. Raises Unavailable (locked by another process, no room, no permission), and ConfigError
        if what is there is no longer what the state is of, so that going back would harm it."""
        # The same one again: of several tasks, it knows which write of its own has failed.
        if self._writer is None or self._of != self.shard:
            self.close()
            self._writer, self._of = self._made(), self.shard
        own, self._other = _parted(state, self._many, self.settings["path"])
        self._writer.open(own)

    def _made(self) -> OneFile | WholeFolder | FolderShard:
        def still_ours() -> None:
            self.still_ours()  # as it is then: each lease has its own

        if not self._many:
            return OneFile(self.path, self.settings["path"], self._me, still_ours)
        from conduit_tasks.connectors.file.folder import FileFolder
        from conduit_tasks.connectors.file.folder_shards import FolderShard, WholeFolder

        by = self._me if self.pipeline else "part"
        folder = FileFolder(self.path, by, "parquet" if self.format == "parquet" else "jsonl", still_ours)
        return WholeFolder(folder) if self.shard is None else FolderShard(folder, self.shard)

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Writes every row, durably. Raises Refused if one cannot be a line or a row, Unavailable."""
        assert self._writer is not None, "open comes first"
        if isinstance(self._writer, OneFile):
            from conduit_tasks.connectors.file.lines import lines

            state: dict[str, Any] | None = self._writer.write(lines(rows, self.format))
        else:
            state = self._writer.write(self._pieces(rows), rows)
        return {**state, OTHER: self._other} if state is not None and self._other is not None else state

    def tidy(self, rows: Rows) -> None:
        """See BatchDestination. One file is cut back by `open`."""
        if self._writer is not None and not isinstance(self._writer, OneFile):
            self._writer.tidy(rows)

    def _pieces(self, rows: Rows) -> list[Piece]:
        """Returns the files of a write. Raises Refused, ConfigError."""
        if self.format == "parquet":
            from conduit_tasks.connectors.arrow_rows import written_rows
            from conduit_tasks.connectors.file.partitions import pieces

            return pieces(written_rows(rows, self.settings["rows"]), self._by)
        from conduit_tasks.connectors.file.folder import Piece
        from conduit_tasks.connectors.file.lines import write_lines

        return [Piece("", partial(write_lines, rows, self.format))]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def makes_files(settings: Mapping[str, str]) -> bool:
    """Returns whether each write makes files of its own in the folder `path`."""
    return settings.get("format") == "parquet" or settings.get("files") == "many"


def _parted(state: dict[str, Any] | None, many: bool, path: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Returns the state for the present writer, and that of the other one, if it is known."""
    if state is None:
        return None, None
    said = {name: value for name, value in state.items() if name != OTHER}
    other = state.get(OTHER)
    if ("n" if many else "size") in said:
        return said, other
    if not {"n", "size"} & said.keys():
        return said, None  # of another plugin
    # What this writer had confirmed before, if anything; the state of another file says nothing of this one.
    own = other if other is not None and (many or other.get("path") == path) else None
    return said if own is None else own, said
