"""`file` as a source: files that only grow, in the order of their names; which one waits for another, and what becomes
of a replaced or removed one (docs/connectors/file.md).

This module is light: the code that reads and writes is imported when it is needed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import missing, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable, Watchable
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.errors import ConfigError, Missing, PartLeftOut, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.file.framing import LineFraming
    from conduit_tasks.connectors.file.on_disk import SourceFile
    from conduit_tasks.connectors.file.plan import Planner, Room

log = logging.getLogger(__name__)


class FileSource(Watchable, Replayable):
    """Files that only grow, in name order (C9). Part: the file's path, relative to home if it lies below it.

    Parquet files are whole; their token is {"row", "rows", "size", "crc"}.

    Token: {"offset": bytes read, "crc": CRC-32 of up to 4 KiB before it}: a file that was shortened or replaced
    raises Missing, and is never read as if it had grown; with `missing: skip` it is a new file, in its next "life"
    (from 1). A record's position: `<part>:<byte offset it begins at>`, `<part>#<life>:…` in a later life
    (`on_disk.place_of`).
    """

    local = True
    parts_go = True
    spec = Spec(
        "file",
        "Reads files that grow (lines, JSON Lines, CSV), and Parquet files.",
        (
            Option("path", "a file, or a glob (`data/*.csv`, `**` for folders); relative to home", required=True),
            Option(
                "format",
                "text: each line raw; jsonl: an object per line; csv: an object of strings per row; parquet: its rows",
                default="text",
                choices=("text", "jsonl", "csv", "parquet"),
            ),
            Option("partition-by", "file: no order between files; by default they are one stream", choices=("file",)),
            Option("key", "field or column whose value is the record's key (jsonl, csv, parquet)"),
            Option(
                "validate",
                "jsonl: full parses every line, so that a damaged one is nacked alone; edges only looks for { and }, "
                "for files that are known to be sound: damage then fails the step that parses it",
                default="full",
                choices=("full", "edges"),
            ),
            Option("slice-bytes", "what one task reads at a time", default="32MiB"),
            Option("settle", "a last line without an end is taken once the file has not changed so long", default="5s"),
            Option("delimiter", "between the cells of a CSV row; \\t is a tab", default=","),
            Option("quote", "around CSV cells; empty: none", default='"'),
            Option("null-values", "CSV cells that are null, comma-separated; empty cells always are", default="NA"),
            missing.OPTION,
            Option(
                "forget-removed",
                "after so long the name of a file that was removed is forgotten: one of that name is new from then on; "
                "never: it is known for ever",
                default="7d",
            ),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.format = self.settings["format"]
        self.key = self.settings.get("key") or None
        self.slice_bytes = options.size(self.settings, "slice-bytes", least=1)
        self.settle = options.duration(self.settings, "settle")
        never = self.settings["forget-removed"] == "never"
        self.forget_after = None if never else options.duration(self.settings, "forget-removed")
        if self.key is not None and self.format == "text":
            raise ConfigError("file: option 'key' needs format jsonl, csv or parquet: a line of text has no fields")
        self._framing()

    def _framing(self) -> LineFraming:
        from conduit_tasks.connectors.file.framing import CsvFraming, LineFraming

        if self.format != "csv":
            return LineFraming(skip_blank=self.format == "jsonl")
        delimiter = self.settings["delimiter"].replace("\\t", "\t")
        return CsvFraming(delimiter.encode(), self.settings["quote"].encode())

    def news(self, position: Position) -> bool:
        from conduit_tasks.connectors.file.on_disk import grown, parts_of

        parts = [part for part in parts_of(self.settings["path"]) if grown(part, position.get(part))]
        # A file that has grown may hold no whole record yet, or only a header.
        try:
            return bool(parts and self._plan(parts, position, Limit(records=1)))
        except PartLeftOut:
            return True

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        from conduit_tasks.connectors.file.on_disk import parts_of

        return self._plan(parts_of(self.settings["path"]), position, limit)

    def gone(self, position: Position) -> set[str]:
        from conduit_tasks.connectors.file.on_disk import parts_of, path_of

        there = set(parts_of(self.settings["path"]))
        # A folder that is not mounted has no files at all: they are not gone. Nor are files that `path` leaves out.
        away = position.keys() - there if there else set()
        return {part for part in away if not os.path.lexists(path_of(part))}

    def _plan(self, parts: list[str], position: Position, limit: Limit) -> list[Slice]:
        from conduit_tasks.connectors.file.on_disk import named
        from conduit_tasks.connectors.file.plan import NotWhole, Planner, Room
        from conduit_tasks.connectors.file.settle import Settling

        parts, trouble = named(parts)
        by_file = self.settings.get("partition-by") == "file"
        settled = Settling(self.settle, parts)
        planner = Planner(self._framing(), self.slice_bytes, settled, (lambda p: p) if by_file else (lambda _: ""))
        room = Room.of(limit)
        slices: list[Slice] = []
        only = parts[0] if len(parts) == 1 else None
        for part in parts:
            if room.full or (limit.slices is not None and len(slices) >= limit.slices):
                break
            try:
                slices.extend(self._of_file(part, only, position.get(part), planner, room))
            except NotWhole:
                if not by_file:
                    break  # later files of the same stream wait for it
            except SourceError as error:
                trouble = trouble or error
                if not by_file:
                    break
        if trouble is None:
            return slices
        if slices:
            raise PartLeftOut(str(trouble), slices) from trouble
        raise trouble

    def _of_file(self, part: str, only: str | None, token: Any | None, planner: Planner, room: Room) -> Iterator[Slice]:
        """Yields the slices of one file past its position. Raises SourceError after the last slice that can be read,
        NotWhole if the file is being written. `only`: the part, if there is only one."""
        from conduit_tasks.connectors.file.on_disk import SourceFile

        try:
            opened = SourceFile(part)
        except Missing:
            # Removed after it was read (or since the glob): nothing is left to read in it.
            if token is not None or part != only:
                return
            raise SourceError(f"{part} does not exist; correct 'path', or write a glob if it comes later") from None
        with opened as file:
            since = self._since(file, token)
            if self.format != "parquet":
                yield from planner.slices(file, since, room)
                return
            from conduit_tasks.connectors.file import parquet

            yield from parquet.slices(
                file,
                since,
                room,
                slice_bytes=self.slice_bytes,
                settled=planner.settled,
                partition=planner.partition,
            )

    def _since(self, file: SourceFile, token: Any | None) -> Any | None:
        """Returns the token to continue from, None for the beginning. If the file was replaced, `missing` decides
        whether it begins a new life; unread data of the old file is gone. Raises Missing if it does not."""
        from conduit_tasks.connectors.file import parquet

        if token is None:
            return None
        file.life = token.get("life", 0)
        try:
            if "rows" in token:
                parquet.check(file, token)
            else:
                file.check(token)
        except Missing as error:
            if self.settings["missing"] != "skip":
                raise Missing(f"{error}. {missing.ways_out(self, missing.forgotten(self, file.part))}") from None
            file.life += 1
            if file.size:
                log.warning("%s: %s; it is read from its beginning, as a new one", self.connector, error)
            return None
        return token

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        return missing.tolerated(self, slice, self._read(slice), missing.forgotten(self, slice.part))

    def _read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        if self.format == "parquet":
            from conduit_tasks.connectors.file.parquet import read_slice as read_rows

            return read_rows(slice, self.key)
        from conduit_tasks.connectors.file.read import read_slice

        nulls = tuple(word.encode() for word in options.words(self.settings, "null-values"))
        parse = self.settings["validate"] == "full"
        return read_slice(slice, self._framing(), self.format, key=self.key, null_values=nulls, parse=parse)

    def before(self, position: bytes, at: Position) -> bool:
        from conduit_tasks.connectors.file.on_disk import part_and_life

        place, _, number = position.decode().rpartition(":")
        part, life = part_and_life(place)
        token: Any = at.get(part)
        if token is None:
            return False
        there = token["offset"] if "offset" in token else token["row"]
        return (life, int(number)) < (token.get("life", 0), there)

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"file.path": slice.part}


SOURCE = FileSource
DESTINATION = FileDestination
