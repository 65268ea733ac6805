"""`sql` as a source: rows of a table or query, behind the highest value of a column that only grows; `lag` leaves the
youngest alone."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.connectors.connection import SQL
from conduit_tasks.connectors.portion import Portion
from conduit_tasks.connectors.sql.errors import translated
from conduit_tasks.connectors.sql.url import address, limits
from conduit_tasks.errors import ConfigError, Refused, SourceError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

SLICE = 50_000
"""Rows that one task reads."""
UNBOUNDED = 1_000_000
"""Rows per plan if the limit names no number of records."""
FETCH = 5_000
"""Rows fetched at a time, and per batch."""

_TEXTS: dict[str, Any] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
}
"""Kinds of values that JSON does not have → function that reads their text."""


class SqlSource(Replayable):
    """Token: the highest value of `column`, as JSON or {"kind", "text"}. A record's position: `<value>:<n>`, n counting
    the rows of one value.

    `plan` fixes upper bounds; the rows between them are fixed by the first attempt whose result is stored.
    """

    spec = Spec(
        "sql",
        "Reads rows of a table or query, in the order of a column that only grows.",
        (
            Option(
                "url",
                "database, as SQLAlchemy writes it: sqlite:///path, postgresql://user@host/name, mysql+pymysql://…",
                required=True,
                example="sqlite:///x",
                secret=True,
            ),
            Option("table", "what to read, optionally with its schema before a dot; or query"),
            Option("query", "a SELECT in place of a table; its result must have the column"),
            Option("column", "the column that only grows: a number, a time, text", required=True),
            Option("columns", "the columns to read, comma-separated; default: all"),
            Option("lag", "leave rows alone whose time in `column` is younger, for transactions still under way"),
            Option("start-after", "the value to begin behind; default: the first"),
            Option("key", "the column whose value is the record's key"),
            Option("timeout", "how long one statement may take (PostgreSQL)", default="1h"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=SQL,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        s = self.settings
        self._url = address(s["url"])
        if ("table" in s) == ("query" in s):
            raise ConfigError("sql: give one of the options 'table' and 'query'")
        if not s.get("start-after", "first").strip():
            raise ConfigError("sql: option 'start-after' is empty; leave it out to begin at the first row")
        self._lag = options.duration(s, "lag") if "lag" in s else None
        self._timeout = options.duration(s, "timeout")
        self._engine: sa.Engine | None = None

    # -- planning -------------------------------------------------------------------------------------------------

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns slices between values of the column. Rows of one value are never parted."""
        room = UNBOUNDED if limit.records is None else limit.records
        start = position.get("")
        bounds: list[Any] = []
        with self._asking(), self._opened().connect() as connection:
            at = self._column()
            found = sa.select(at).select_from(self._rows()).where(*self._behind(start)).order_by(at).limit(1)
            [one] = connection.execute(found).scalars().all() or [None]
            query = found.with_only_columns(_exact(at, one)).limit(room)
            result = connection.execution_options(stream_results=True, yield_per=FETCH).execute(query)
            value = None
            for n, (value,) in enumerate(result, 1):
                if n % SLICE == 0:
                    bounds.append(value)
        if value is None:
            return []
        if not bounds or bounds[-1] != value:
            bounds.append(value)
        slices = []
        for n, bound in enumerate(bounds):
            if n and bound == bounds[n - 1]:
                continue  # a value with more rows than a slice
            end = _token(bound)
            slices.append(Slice("", "", start, end))
            start = end
        return slices

    def _behind(self, start: Token) -> list[Any]:
        at = self._column()
        conditions = [at.is_not(None)]
        if start is not None:
            conditions.append(at > _value(start))
        elif "start-after" in self.settings:
            conditions.append(at > _typed(self.settings["start-after"]))
        if self._lag is not None:
            conditions.append(at <= self._settled(self._lag))
        return conditions

    def _settled(self, lag: float) -> Any:
        """Returns the time before which rows are taken: the server's if it can be asked, otherwise ours in UTC."""
        if self._url.get_backend_name() == "postgresql":
            return sa.func.current_timestamp() - sa.cast(f"{lag} seconds", sa.Interval)
        return dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0) - dt.timedelta(seconds=lag)

    def _column(self) -> Any:
        return sa.column(self.settings["column"])

    def _rows(self) -> Any:
        if "query" in self.settings:
            return sa.text(f"({self.settings['query'].strip().rstrip(';')}) AS conduit_rows")
        schema, _, name = self.settings["table"].rpartition(".")
        return sa.table(name, schema=schema or None)

    def before(self, position: bytes, at: Position) -> bool | None:
        if (token := at.get("")) is None:
            return False
        text = position.decode().rpartition(":")[0]
        if isinstance(token, dict):
            return bool(_TEXTS[token["kind"]](text) <= _value(token))
        if isinstance(token, str):
            # Only SQLite compares text as Python does; elsewhere a collation decides.
            return text <= token if self._url.get_backend_name() == "sqlite" else None
        return type(token)(text) <= token

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        at = self._column()
        wanted: list[Any] = [sa.column(name) for name in options.words(self.settings, "columns")]
        # The position's column is read under a name of ours, whichever columns are asked for.
        columns = [_exact(at, slice.end).label("conduit_at"), *(wanted or [sa.literal_column("*")])]
        conditions = [at.is_not(None), at <= _value(slice.end)]
        if slice.start is not None:
            conditions.append(at > _value(slice.start))
        elif "start-after" in self.settings:
            conditions.append(at > _typed(self.settings["start-after"]))
        from conduit_tasks.connectors.arrow_rows import check_names

        query = sa.select(*columns).select_from(self._rows()).where(*conditions).order_by(at)
        before, n = None, 0
        with self._asking(), self._opened().connect() as connection:
            result = connection.execution_options(stream_results=True).execute(query)
            names = list(result.keys())[1:]
            check_names(names, self._named())
            portion = Portion(FETCH)
            while page := result.fetchmany(portion.size):
                positions, rows = [], []
                for value, *cells in page:
                    before, n = value, n + 1 if value == before else 0
                    positions.append(f"{_text(value)}:{n}".encode())
                    rows.append(dict(zip(names, cells)))
                batch = self._batch(positions, rows)
                portion.came(batch.num_rows, batch.nbytes)
                yield batch

    def _batch(self, positions: list[bytes], rows: list[dict[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        from conduit_tasks.connectors.arrow_rows import json_of, key_of
        from conduit_tasks.record.schema import AFTER_STRUCTURED, read_batch

        key = self.settings.get("key")
        if key is not None and rows and key not in rows[0]:
            raise SourceError(f"{self._named()} has no column '{key}' (option 'key'); it has {', '.join(rows[0])}")
        keys = None if key is None else pa.array([key_of(row[key]) for row in rows], pa.binary())
        after = pa.array([json_of(row) for row in rows], pa.binary())
        return read_batch(pa.array(positions, pa.binary()), after=after, key=keys, shape=AFTER_STRUCTURED)

    def metadata(self, slice: Slice) -> dict[str, str]:
        return {"opencdc.collection": self.settings["table"]} if "table" in self.settings else {}

    # -- the database ---------------------------------------------------------------------------------------------

    def _asking(self) -> Any:
        return _Asking(self._named())

    def _opened(self) -> sa.Engine:
        if self._engine is None:
            # One connection, closed with the source: nothing is pooled between tasks.
            self._engine = sa.create_engine(
                self._url, poolclass=sa.pool.NullPool, connect_args=limits(self._url, self._timeout)
            )
            if self._url.get_backend_name() == "sqlite":
                sa.event.listen(self._engine, "connect", _any_text)
        return self._engine

    def _named(self) -> str:
        return f"sql table {self.settings['table']}" if "table" in self.settings else "sql query"

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _any_text(connection: Any, _: Any) -> None:
    """Makes SQLite return text that is not UTF-8 as bytes, so that it keeps no other row from being read."""

    def read(raw: bytes) -> str | bytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    connection.text_factory = read


class _Asking:
    """Turns the database's errors into SourceError. The message of one that may recover says that it is tried again."""

    def __init__(self, where: str) -> None:
        self._translated = translated(where)

    def __enter__(self) -> None:
        self._translated.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._translated.__exit__(*error)
        except (ConfigError, Refused) as said:
            text = str(said).replace("fix the table, the rights or `columns`", "correct 'table', 'query' or 'column'")
            raise SourceError(text) from None
        except Unavailable as said:
            raise SourceError(f"{said}; it is tried again") from None


def _exact(column: Any, example: Any) -> Any:
    """Returns the column as its values are compared, a float as a double: the shortest text of a `real` is another
    number than the one that is stored."""
    return sa.cast(column, sa.Double) if isinstance(example, float) else column


def _kind(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return "datetime"
    return {dt.date: "date", Decimal: "decimal", UUID: "uuid"}.get(type(value), "")


def _token(value: Any) -> Token:
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise SourceError(
            f"sql: option 'column': a row has {value} there, behind which no other comes; fix it, or leave it out "
            "with 'query'"
        )
    kind = _kind(value)
    if kind:
        return {"kind": kind, "text": _text(value)}
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SourceError(
            f"sql: option 'column': a {type(value).__name__} gives rows no sure order; take a number, a time or text"
        )
    return value


def _value(token: Token) -> Any:
    return _TEXTS[token["kind"]](token["text"]) if isinstance(token, dict) else token


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _typed(text: str) -> Any:
    """Reads the value of `start-after`: a whole number, a time, or text."""
    for parse in (int, dt.datetime.fromisoformat):
        try:
            return parse(text)
        except ValueError:
            continue
    return text
