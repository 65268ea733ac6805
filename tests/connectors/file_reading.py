"""What tests of the file source read, and how."""

from __future__ import annotations

from conduit_tasks.connectors.base import Limit, Position, Slice
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import READ_SCHEMA, to_records

ALL = Limit()


def source(path: str, **options: str) -> FileSource:
    return FileSource({"path": path, "settle": "0s", **{k.replace("_", "-"): v for k, v in options.items()}})


def read(connector: FileSource, slices: list[Slice]) -> list[Record]:
    records = []
    for piece in slices:
        batches = list(connector.read(piece))
        assert all(b.schema == READ_SCHEMA for b in batches)
        of_slice = [r for b in batches for r in to_records(b, Origin("p", "in", piece.partition))]
        assert len(of_slice) == piece.records
        records += of_slice
    return records


def after(position: Position, slices: list[Slice]) -> Position:
    return position | {s.part: s.end for s in slices}


def everything(connector: FileSource, limit: Limit = ALL) -> list[Record]:
    """All records, plan by plan."""
    position: Position = {}
    records: list[Record] = []
    while slices := connector.plan(position, limit):
        records += read(connector, slices)
        position = after(position, slices)
    return records


def payloads(connector: FileSource, limit: Limit = ALL) -> list[object]:
    return [r.after for r in everything(connector, limit)]
