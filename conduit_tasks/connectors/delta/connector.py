"""`delta` as a source: first the table as it is, then the files that each version adds, cut into slices; a version that
updates or deletes rows (`on-change`).

This module is light: the code that reads and writes is imported when it is needed (docs/connectors/delta.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import missing, options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.connection import STORE
from conduit_tasks.connectors.delta.destination import DeltaDestination
from conduit_tasks.connectors.delta.storage import check_storage, table_uri
from conduit_tasks.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.delta.log import Added, DeltaLog

_NO_BOUND = 1 << 62


class DeltaSource(Replayable):
    """Token: {"version", "file", "row": the next to read}; "whole" as long as the table itself, as of that version, is
    read. A record's position: `<file within the table>:<row>`.
    """

    spec = Spec(
        "delta",
        "Reads what versions of a Delta table add to it.",
        (
            Option("path", "the table: a folder, relative to home, or a URI (s3://…)", required=True),
            Option(
                "start",
                "table: the table as it is, then what is added; or the first version to read",
                default="table",
            ),
            Option("end", "the last version to read; default: no end"),
            Option(
                "on-change",
                "a version that updates or deletes rows: fail, or ignore it and read what it adds",
                default="fail",
                choices=("fail", "ignore"),
            ),
            Option("key", "field whose value is the record's key"),
            missing.OPTION,
            Option("storage.*", "an option of the object store, such as storage.AWS_REGION", secret=True),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=STORE,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        check_storage(self.settings)
        self.start_version = None if self.settings["start"] == "table" else options.integer(self.settings, "start")
        self.end = options.integer(self.settings, "end") if "end" in self.settings else _NO_BOUND
        self.key = self.settings.get("key") or None

    def _log(self) -> DeltaLog:
        from conduit_tasks.connectors.delta.log import DeltaLog

        return DeltaLog(table_uri(self.settings["path"]), self.settings)

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        log = self._log()
        newest = min(log.version, self.end)
        token = position.get("") or self._first(log)
        records = _NO_BOUND if limit.records is None else limit.records
        size = _NO_BOUND if limit.bytes is None else limit.bytes
        slices: list[Slice] = []
        while token["version"] <= newest and records > 0 and (size > 0 or not slices):
            version, whole = token["version"], bool(token.get("whole"))
            files = log.whole(version) if whole else self._added(log, version)
            if token["file"] >= len(files):
                token = {"version": version + 1, "file": 0, "row": 0}
                continue
            file = files[token["file"]]
            left = None if file.rows is None else file.rows - token["row"]
            take = left if left is None else min(left, records)
            ends = take is None or take == left
            after: dict[str, Any] = {**token, "file": token["file"] + 1, "row": 0}
            if not ends:
                after = {**token, "row": token["row"] + (take or 0)}
            elif after["file"] == len(files):
                after = {"version": version + 1, "file": 0, "row": 0}
            hint = {"path": file.path, "row": token["row"], "rows": take, "partition": _texts(file.partition)}
            bytes_ = file.size if ends else int(file.size * (take or 0) / max(file.rows or 1, 1))
            slices.append(Slice("", "", token, after, take, bytes_, hint))
            records, size = records - (take or 0), size - bytes_
            token = after
        return slices

    def _first(self, log: DeltaLog) -> dict[str, Any]:
        if self.start_version is None:
            return {"version": min(log.version, self.end), "file": 0, "row": 0, "whole": True}
        return {"version": self.start_version, "file": 0, "row": 0}

    def _added(self, log: DeltaLog, version: int) -> list[Added]:
        files, removed = log.added(version)
        if removed and self.settings["on-change"] == "fail":
            raise SourceError(
                f"delta: version {version} of {self.settings['path']} updates or deletes rows, which appended records "
                "cannot say. With on-change: ignore what it adds is read, and what it removes is not told"
            )
        return files

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.connectors.delta.read import read_slice

        batches = read_slice(self._log(), slice, self.key)
        return missing.tolerated(self, slice, batches, missing.beyond(self, slice))

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"delta.version": str(slice.start["version"]), "delta.path": self.settings["path"]}


def _texts(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of partition columns as text, as the log holds them and JSON can."""
    return {n: v if v is None else str(v).lower() if isinstance(v, bool) else str(v) for n, v in partition.items()}


SOURCE = DeltaSource
DESTINATION = DeltaDestination
