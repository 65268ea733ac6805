"""`enrich` (ours): a broadcast join: puts columns of a small table or file into each record with the row's key.

The table is read once per executor, at the first record, and held in memory; a changed file is read again. Keys
are compared as text, so 12 and "12" are the same; the last row of a key wins. Values are what JSON can hold: dates and
decimals become text; everything in a CSV file is text, and an empty cell null.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError, SourceError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import data_reference, reference
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, copy_data
from conduit_tasks.settings import settings as installation
from conduit_tasks.templates.values import nested

Table = Mapping[str, dict[str, Any]]
QUERY = 600.0
"""Seconds that the query of a table may take."""
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


class Enrich(RecordProcessor):
    """See the module."""

    spec = Spec(
        "enrich",
        "Adds columns of a table or file to records by a key.",
        (
            Option(
                "on",
                "the record's field that holds the key, for example .Payload.After.carrier",
                required=True,
                example=".Payload.After.x",
            ),
            Option("key", "the table's column that holds it", required=True),
            Option("columns", "comma-separated columns to add; default: all but the key"),
            Option("into", "where they go, a structured field", default=".Payload.After"),
            Option(
                "missing", "a record without a row: keep, filter or error", "keep", choices=("keep", "filter", "error")
            ),
            Option("path", "a CSV, JSON Lines or Parquet file, relative to the home folder"),
            Option("url", "or a database: SQLAlchemy URL", secret=True),
            Option("query", "with url: the SELECT that gives the table"),
            Option("max-rows", "a larger table is refused, because it is held in memory", default="1000000"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._on = reference("enrich", "on", s["on"])
        self._into = data_reference("enrich", "into", s["into"])
        self.changes = self._into.parts
        self.reads = self._on.parts | self.changes
        self._missing = s["missing"]
        self._columns = tuple(options.words(s, "columns"))
        self._most = options.integer(s, "max-rows", least=1)
        if ("path" in s) == ("url" in s):
            raise ConfigError("enrich: give exactly one of the options 'path' and 'url'")
        if ("url" in s) != ("query" in s):
            raise ConfigError("enrich: the options 'url' and 'query' go together")
        if "path" in s and Path(s["path"]).suffix not in FORMATS:
            raise ConfigError(f"enrich: option 'path': {s['path']} must end in {', '.join(FORMATS)}")
        self._table: Table | None = None

    @classmethod
    def asks(cls, settings: Mapping[str, str]) -> str:
        return "queries a database" if "url" in settings else ""

    def process(self, record: Record) -> Record | None:
        if self._table is None:
            self._table = self._read()
        value = self._on.get(record)
        row = None if value is None else self._table.get(_key(value))
        if row is None:
            if self._missing == "error":
                raise RecordError(f"enrich: no row for {self._on.text}")
            return None if self._missing == "filter" else record
        into = self._into.get(record)
        if into is None:
            self._into.set(record, copy_data(row))
        elif isinstance(into, dict):
            into.update(copy_data(row))
        else:
            raise RecordError(f"enrich: {self._into.text} is no structured data; decode it first (json.decode)")
        return record

    def _read(self) -> Table:
        s = self.settings
        if "url" in s:
            return _table(_query(s["url"], s["query"]), s["key"], self._columns, self._most)
        path = installation().path(s["path"])
        try:
            state = Path(path).stat()
        except OSError as error:
            raise SourceError(f"enrich: option 'path': {path} cannot be read: {error.strerror}") from None
        return _file(path, (state.st_mtime_ns, state.st_size), s["key"], self._columns, self._most)


def _key(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else nested(value)


@lru_cache(maxsize=8)
def _file(path: str, state: tuple[int, int], key: str, columns: tuple[str, ...], most: int) -> Table:
    """Returns the table of a file. Chains are built per slice; those of an executor share the table until the file's
    `state` changes."""
    return _table(_rows(path), key, columns, most)


def _table(rows: Iterable[Mapping[str, Any]], key: str, columns: tuple[str, ...], most: int) -> Table:
    table: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        if number > most:
            raise ConfigError(f"enrich: the table has more than {most:,} rows; narrow it, or raise 'max-rows'")
        missing = [name for name in (key, *columns) if name not in row]
        if missing:
            raise ConfigError(f"enrich: row {number} has no column {', '.join(missing)}; it has {', '.join(row)}")
        if row[key] is not None:
            names = columns or [name for name in row if name != key]
            table[_key(row[key])] = {name: row[name] for name in names}
    return table


def _rows(path: str) -> Iterable[Mapping[str, Any]]:
    kind = FORMATS[Path(path).suffix]
    try:
        if kind == "csv":
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
                for row in csv.DictReader(file):
                    yield {name: value or None for name, value in row.items() if name is not None}
        elif kind == "jsonl":
            with Path(path).open("rb") as lines:
                yield from (jsons.loads(line) for line in lines if line.strip())
        else:
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as parquet:
                for batch in parquet.iter_batches():
                    yield from map(_plain, batch.to_pylist())
    except (OSError, ValueError, csv.Error) as error:
        raise SourceError(f"enrich: option 'path': {path} cannot be read: {error}") from error


def _query(url: str, query: str) -> Iterable[Mapping[str, Any]]:
    import sqlalchemy

    from conduit_tasks.connectors.sql.url import limits, with_driver

    try:
        address = with_driver(sqlalchemy.make_url(url))
        engine = sqlalchemy.create_engine(address, connect_args=limits(address, QUERY))
        try:
            with engine.connect() as connection:
                for row in connection.execute(sqlalchemy.text(query)).mappings():
                    yield _plain(dict(row))
        finally:
            engine.dispose()
    except sqlalchemy.exc.SQLAlchemyError as error:
        # The error's text may show the address with its password.
        raise SourceError(f"enrich: option 'query' failed: {type(error).__name__}; try it by hand") from None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = jsons.loads(jsons.dumps(row, default=_text))
    return plain


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
