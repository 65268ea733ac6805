"""The binary log from a place on: rows of some tables, and the ends of transactions; leaves out what was rolled back,
refuses what hides changes.

It is read by the set of transactions of a place (`places`) where there is one, so that a replica may take over; else by
file and position, which mean something on one server only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conduit_tasks.connectors.mysql import client, gtids, statements
from conduit_tasks.connectors.mysql.client import Server
from conduit_tasks.connectors.mysql.places import AGAIN, Place
from conduit_tasks.connectors.mysql.wanted import Tables
from conduit_tasks.errors import ConfigError, Missing, SourceError

_COMPRESSED = {40: "binlog_transaction_compression", **dict.fromkeys(range(165, 172), "log_bin_compress")}
_PARTIAL, _INCIDENT, _ANONYMOUS = 39, 26, 34
_STATEMENTS = frozenset((17, 18))
"""LOAD DATA as a statement."""
_GONE = re.compile("could not find first log|purged|not in the master's binlog|not in the .*binary log", re.IGNORECASE)
"""The error has other causes as well, such as a file that cannot be read."""
_DUMP = b"\x12"
"""Command of a request for the log."""
_STANDALONE = 1
"""Flag of MariaDB's GTID event: one statement, and no COMMIT behind it."""
_HELD = 64 << 20
"""Bytes of a transaction that are kept until it is known whether they were rolled back."""


@dataclass(frozen=True)
class Rows:
    """Rows of one table, not decoded yet. `kind`: create, update or delete; `group`: name of the transaction, the same
    whenever it is read; `seconds`: time of the change since 1970."""

    kind: str
    table_map: Any
    event: Any
    group: str
    seconds: int


@dataclass(frozen=True)
class Emptied:
    """A TRUNCATE of one table."""

    schema: str
    table: str
    group: str
    seconds: int


@dataclass(frozen=True)
class Mark:
    """A SAVEPOINT of this name, or a ROLLBACK to it; to the beginning of the transaction if it has no name."""

    name: str
    undone: bool


@dataclass(frozen=True)
class End:
    """The end of a transaction, of whichever tables."""

    place: Place


class Log:
    """The log of a server. It is read to its present end, and then ends."""

    def __init__(self, server: Server, tables: Tables, timeout: float) -> None:
        self._server, self._tables, self._timeout = server, tables, timeout

    def read(self, start: Place) -> Iterator[Rows | Emptied | End]:
        """Yields what is behind a place. Raises Missing if the server has not got it any more, SourceError."""
        with self._opened(start) as stream:
            yield from _kept(_Groups(stream, self._tables, start, self._ways).all())

    def _ways(self) -> frozenset[str]:
        """Returns the names by which statements may reach tables that they do not name."""
        connection = self._server.connect(self._timeout)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statements.WAYS)
                return frozenset(str(name) for (name,) in cursor.fetchall())
        finally:
            client.close(connection)

    @contextmanager
    def _opened(self, start: Place) -> Iterator[Any]:
        try:
            from pymysqlreplication import BinLogStreamReader
            from pymysqlreplication.exceptions import MalformedBinLogEvent
        except ImportError:
            raise ConfigError(client.EXTRA.replace("PyMySQL", "mysql-replication")) from None
        pymysql = client.library()
        by: dict[str, Any] = {"log_file": start["file"], "log_pos": start["pos"]}
        if start["gtid"]:
            by = {"auto_position": start["gtid"], "is_mariadb": ":" not in start["gtid"]}
        stream = BinLogStreamReader(
            connection_settings={},
            # As a tool, not as a replica: it registers nowhere, and ends no other reader.
            server_id=0,
            resume_stream=True,
            filter_non_implemented_events=False,
            pymysql_wrapper=_Opener(self._server, self._timeout),
            enable_logging=False,
            **self._tables.filters,
            **by,
        )
        where = start["gtid"] or f"{start['file']}:{start['pos']}"
        try:
            yield stream
        except pymysql.Error as error:
            if client.code_of(error) == client.PURGED and _GONE.search(str(error)):
                raise Missing(
                    f"mysql: the log behind {where} is gone: {client.said(error)} (binlog_expire_logs_seconds, PURGE, "
                    f"RESET, or another server). Its changes can be had no more: {AGAIN}"
                ) from error
            if client.code_of(error) in (1045, 1227):
                raise ConfigError(
                    f"mysql: {client.said(error)}; GRANT REPLICATION SLAVE ON *.* to the user of option 'url'"
                ) from None
            raise SourceError(f"mysql: the log behind {where}: {client.said(error)}") from error
        except (struct.error, LookupError, ValueError, NotImplementedError, MalformedBinLogEvent) as error:
            raise SourceError(
                f"mysql: the log behind {where} cannot be read: {type(error).__name__}: {client.said(error)}. It is "
                "read again; if it stays so, a table may have a column in a form that is not read (compressed, vector)"
            ) from error
        finally:
            stream.close()


class _Opener:
    """Opens the connections of the library: one for the log, and one for questions. It opens no second one for the log:
    the library would read on by a set of transactions from the beginning, and give changes twice."""

    def __init__(self, server: Server, timeout: float) -> None:
        self._server, self._timeout = server, timeout
        self._opened = False

    def __call__(self, **settings: Any) -> Any:
        asks = "cursorclass" in settings
        if not asks and self._opened:
            raise client.library().OperationalError(2013, "the connection to the log was lost")
        self._opened = self._opened or not asks
        more = {"database": settings["db"], "cursorclass": settings["cursorclass"]} if asks else {}
        made = self._server.connect(self._timeout, **more)
        if not asks:
            made._write_bytes = _whole(made._write_bytes)
        return made


def _whole(write: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Returns a function that writes a packet with its true length. The library says too little in its request to
    MariaDB (10 bytes of 15): the rest stays unread there, and the server, which closes the connection at the end of the
    log, thereby resets it: what is still on its way is lost."""

    def written(data: bytes) -> None:
        if data[4:5] == _DUMP:
            data = (len(data) - 4).to_bytes(3, "little") + data[3:]
        write(data)

    return written


def _kept(found: Iterator[Rows | Emptied | Mark | End]) -> Iterator[Rows | Emptied | End]:
    """Leaves out what was rolled back: the log has it if the transaction also changed what cannot be rolled back
    (a temporary table, MyISAM). So a transaction is given when its end is known, or when it is larger than _HELD."""
    held: list[Rows | Emptied] = []
    marks: dict[str, int] = {}
    size, given = 0, False
    for each in found:
        if isinstance(each, End):
            yield from held
            yield each
            held, marks, size, given = [], {}, 0, False
        elif not isinstance(each, Mark):
            held.append(each)
            size += each.event.event_size if isinstance(each, Rows) else 0
            if size > _HELD:
                yield from held
                held, size, given = [], 0, True
        elif not each.undone:
            marks[each.name] = -1 if given else len(held)
        elif given:
            raise SourceError(
                f"mysql: a transaction of more than {_HELD >> 20} MiB was rolled back, in whole or in part, after it "
                f"changed a table without transactions or a temporary one; {AGAIN}"
            )
        else:
            del held[marks.get(each.name, 0) if each.name else 0 :]


class _Groups:
    """Events as transactions. `_state`: "" between them; `open`: begun, and BEGIN or a statement follows; `alone`: one
    statement; `in`: until its COMMIT."""

    def __init__(self, stream: Any, tables: Tables, start: Place, ways: Callable[[], frozenset[str]]) -> None:
        self._stream, self._tables = stream, tables
        self._ask, self._ways = ways, frozenset[str]()
        self._asked = False
        self._file, self._gtids = start["file"], start["gtid"]
        self._state = self._gtid = self._group = ""
        self._ours = False
        self._maps: dict[int, Any] = {}

    def all(self) -> Iterator[Rows | Emptied | Mark | End]:  # noqa: PLR0912 - one for each kind of event
        from pymysqlreplication import event as events
        from pymysqlreplication import row_event

        kinds = {
            row_event.WriteRowsEvent: "create",
            row_event.UpdateRowsEvent: "update",
            row_event.DeleteRowsEvent: "delete",
        }
        for event in self._stream:
            if isinstance(event, events.FormatDescriptionEvent):
                if event.checksum_algorithm != 1:
                    raise SourceError(
                        "mysql: a file of the log has no checksums, which is not read. SET GLOBAL binlog_checksum = "
                        f"CRC32; if it was switched off for a while, {AGAIN}"
                    )
            elif isinstance(event, events.RotateEvent):
                self._file = event.next_binlog
                self._forget_tables()
            elif isinstance(event, events.GtidEvent | events.MariadbGtidEvent) or self._code(event) == _ANONYMOUS:
                self._begin(event)
            elif isinstance(event, row_event.TableMapEvent):
                self._maps[event.table_id] = event
            elif type(event) in kinds:
                self._begun(event)
                if (event.schema, event.table) in self._tables:
                    self._ours = True
                    map_ = self._maps[event.table_id]
                    yield Rows(kinds[type(event)], map_, event, self._group, event.timestamp)
            elif isinstance(event, events.QueryEvent):
                yield from self._query(event)
            elif isinstance(event, events.XidEvent):
                yield self._end(event)
            elif isinstance(event, events.XAPrepareEvent):
                if not event.one_phase and self._ours:
                    raise SourceError(
                        f"mysql: transaction {self._group} was prepared by XA, and the log has changes before it is "
                        f"known if they are committed. Write these tables without XA, and {AGAIN}"
                    )
                yield self._end(event)
            else:
                self._check(event)

    @staticmethod
    def _code(event: Any) -> int:
        return int(event.packet.event_type)

    def _begin(self, event: Any) -> None:
        """Begins a transaction at this event."""
        self._gtid = getattr(event, "gtid", "")
        begins = event.packet.log_pos - event.packet.event_size
        self._group = self._gtid or f"{self._file}:{begins}"
        flags = getattr(event, "flags", None)
        self._state = "open" if flags is None else ("alone" if flags & _STANDALONE else "in")
        self._ours = False
        self._forget_tables()

    def _begun(self, event: Any) -> None:
        """Begins a transaction without an event of its own (MySQL without GTIDs)."""
        if not self._state:
            self._begin(event)
            self._gtid, self._state = "", "in"

    def _forget_tables(self) -> None:
        """Forgets the numbers of tables: after a restart the server gives them to other tables."""
        self._maps.clear()
        self._stream.table_map.clear()

    def _query(self, event: Any) -> Iterator[Emptied | Mark | End]:
        text = statements.bare(event.query)
        if statements.BEGINS.match(text):
            if not self._state:
                self._begin(event)
            self._gtid = self._gtid if self._group == self._gtid else ""
            self._state = "in"
            return
        if (mark := statements.SAVEPOINT.match(text)) is not None:
            yield Mark(statements.unquoted(mark[2]), mark[1][:1] in "Rr")
            return
        if statements.ENDS.match(text):
            if "ROLLBACK" in text.upper():
                yield Mark("", True)
            yield self._end(event)
            return
        self._begun_alone(event)
        if (cut := statements.TRUNCATE.match(text)) is not None:
            first, second = (statements.unquoted(name) if name else "" for name in cut.groups())
            schema, table = (first, second) if second else (event.schema.decode(), first)
            if (schema, table) in self._tables:
                yield Emptied(schema, table, self._group, event.timestamp)
        elif statements.REMOVES.match(text) and self._named(text):
            raise SourceError(
                f"mysql: in transaction {self._group} rows of a table go that the log does not name "
                f"({text[:60].strip()}…). Therefore {AGAIN}"
            )
        elif statements.FUNCTION.match(text) or (statements.ROWS_BY_STATEMENT.match(text) and self._reached(text)):
            raise SourceError(
                f"mysql: transaction {self._group} has a statement in the log in place of its rows. SET GLOBAL "
                f"binlog_format = ROW, also in the session that writes, and {AGAIN}"
            )
        if self._state != "in":
            yield self._end(event)

    def _begun_alone(self, event: Any) -> None:
        if not self._state:
            self._begin(event)
            self._gtid, self._state = "", "alone"

    def _named(self, text: str) -> bool:
        """Returns whether a statement may be about one of our tables."""
        if self._tables.every:
            return True
        return statements.names_one(text, (name for _, name in self._tables.names))

    def _reached(self, text: str) -> bool:
        """Returns whether a statement may change one of our tables, also by a view or a trigger."""
        if self._named(text):
            return True
        if not self._asked:
            # Only now: statements are rare, and a server may have many views.
            self._ways, self._asked = self._ask(), True
        return statements.names_one(text, self._ways)

    def _end(self, event: Any) -> End:
        if self._gtid and self._gtids:
            self._gtids = gtids.added(self._gtids, self._gtid)
        self._state = self._gtid = ""
        return End({"file": self._file, "pos": event.packet.log_pos, "gtid": self._gtids})

    def _check(self, event: Any) -> None:
        """Raises SourceError for events that hide changes."""
        code = self._code(event)
        if setting := _COMPRESSED.get(code):
            raise SourceError(
                f"mysql: the log is compressed, which is not read. SET GLOBAL {setting} = OFF, and {AGAIN}"
            )
        if code in _STATEMENTS:
            raise SourceError(
                "mysql: the log has a statement in place of its rows. SET GLOBAL binlog_format = ROW, also in the "
                f"session that writes, and {AGAIN}"
            )
        if code == _PARTIAL:
            raise SourceError(
                "mysql: the log has parts of JSON documents only. SET GLOBAL binlog_row_value_options = '', and "
                + AGAIN
            )
        if code == _INCIDENT:
            raise SourceError(f"mysql: the server says that its log lacks changes (an incident). Therefore {AGAIN}")
