"""`mysql` as a source: a snapshot of the tables, then the changes of the binary log behind the place that was noted
before it.

This module is light: the code that reads and writes is imported when it is used (docs/connectors/mysql.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Source, Spec, Token
from conduit_tasks.connectors.connection import MYSQL
from conduit_tasks.connectors.mysql import client
from conduit_tasks.connectors.mysql.destination import MysqlDestination
from conduit_tasks.errors import ConfigError, Missing, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

_BEHIND = 64 << 20
"""Bytes of log without a change of ours after which the position moves anyway, so that they are not looked at again."""


class MysqlSource(Source):
    """Token: {"file", "pos", "gtid", "skip": rows already read of transactions that follow}, with "within": how many of
    which, counted over "tables"; and while the snapshot is taken also {"snapshot": tables left, "after": key of the row
    read last}.

    Its slices are open: a snapshot's rows change, and how many changes the log has is known by reading it. A slice of
    changes ends at the latest where the log ended when it was planned.
    """

    ack_on: ClassVar[Literal["delivered", "stored"]] = "delivered"

    spec = Spec(
        "mysql",
        "Reads tables of MySQL and MariaDB and then their changes, by the binary log.",
        (
            Option(
                "url",
                "database: mysql://user:password@host:3306/name?ssl_ca=ca.pem&ssl_verify_identity=true",
                secret=True,
                required=True,
                example="mysql://localhost/x",
            ),
            Option(
                "tables",
                "tables, optionally with their database before a dot, comma-separated; * for all of the URL's database",
                required=True,
            ),
            Option(
                "mode",
                "cdc: the tables as they are, then their changes; snapshot: only as they are",
                default="cdc",
                choices=("cdc", "snapshot"),
            ),
            Option(
                "snapshotMode",
                "initial: the rows that are there come first; never: changes only, from the first plan on",
                default="initial",
                choices=("initial", "never"),
            ),
            Option("timeout", "how long one statement, or the next event of the log, may take", default="1h"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
        connection=MYSQL,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._server = client.server(self.settings["url"])
        self._tables = options.names(self.spec, self.settings, "tables")
        if "*" in self._tables and (len(self._tables) > 1 or not self._server.database):
            raise ConfigError("mysql: option 'tables': * stands alone, and for the database that option 'url' names")
        self._names = ",".join(sorted(self._tables))
        self._timeout = options.duration(self.settings, "timeout")
        self._cdc = self.settings["mode"] == "cdc"
        self._ends: dict[bytes, Token] = {}

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        with client.connected(self._server, SourceError, self._timeout) as connection:
            token = position.get("")
            if token is None:
                token = self._begin(connection)
                if not token.get("snapshot"):
                    # Stored at once: what changes from now on is behind it.
                    return [Slice("", "", token, token, 0, 0)]
            if token.get("snapshot"):
                hint = {"records": limit.records, "bytes": limit.bytes}
                return [Slice("", "", token, None, hint=hint, open=True)]
            return self._changes(connection, token, limit) if self._cdc else []

    def _begin(self, connection: Any) -> dict[str, Any]:
        """Returns the first token. The end of the log is looked up before the first row is read: a change is in the
        snapshot, or comes after it, or both."""
        from conduit_tasks.connectors.mysql.places import committed
        from conduit_tasks.connectors.mysql.read import check_changes, check_key
        from conduit_tasks.connectors.mysql.tables import described, resolved

        token: dict[str, Any] = {**committed(connection, self._databases), "skip": 0} if self._cdc else {}
        tables = resolved(connection, self._tables, self._server.database)
        for name in tables if self._cdc else ():
            check_changes(connection, described(connection, *name.split(".", 1)))
        if not self._cdc or self.settings["snapshotMode"] == "initial":
            for name in tables:
                check_key(described(connection, *name.split(".", 1)))
            token["snapshot"] = tables
        return token

    def _changes(self, connection: Any, token: dict[str, Any], limit: Limit) -> list[Slice]:
        """Returns one slice or none."""
        from conduit_tasks.connectors.mysql.binlog import End
        from conduit_tasks.connectors.mysql.places import by_gtid, check_server, now, reached

        upto = now(connection, self._databases)
        check_server(token, upto)
        if token.get("tables", self._names) != self._names:
            raise ConfigError(
                f"mysql: option 'tables' was changed while transaction {', '.join(token['within'])} was read in part, "
                f"and its rows are counted over {token['tables']}. Put that back until a run has read the rest, then "
                "change it"
            )
        if not token["skip"] and reached(token, upto):
            return []
        last, passed = by_gtid(connection, token), 0
        try:
            for found in self._log(connection).read(last):
                if not isinstance(found, End):
                    hint = {"records": limit.records, "bytes": limit.bytes, "from": last, "upto": upto}
                    return [Slice("", "", token, None, hint=hint, open=True)]
                kept: dict[str, Any] = {name: token[name] for name in ("server", "within", "tables") if name in token}
                skip = token["skip"] if "within" in token else 0
                passed += max(0, found.place["pos"] - (last["pos"] if found.place["file"] == last["file"] else 0))
                last = {**kept, **found.place, "skip": skip}
                if reached(found.place, upto):
                    break
        except Missing as error:
            raise Missing(f"{error}. {self._ways_out(token, upto)}") from error.__cause__
        if passed > _BEHIND:
            return [Slice("", "", token, last, 0, 0)]
        return []

    @property
    def _databases(self) -> set[str]:
        return {name.partition(".")[0] if "." in name else self._server.database for name in self._tables}

    def _ways_out(self, token: dict[str, Any], now: dict[str, Any]) -> str:
        from conduit_tasks.connectors.missing import beyond

        there = Slice("", "", token, {**now, "skip": 0})
        return f"Or, to go on at the end of the log without them: {beyond(self, there)}"

    def _log(self, connection: Any) -> Any:
        from conduit_tasks.connectors.mysql.binlog import Log
        from conduit_tasks.connectors.mysql.wanted import wanted

        return Log(self._server, wanted(connection, self._tables, self._server.database), self._timeout)

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.connectors.batches import batches
        from conduit_tasks.connectors.mysql.read import Changes, Chunk

        if not slice.open:
            return
        with client.connected(self._server, SourceError, self._timeout) as connection:
            reading: Any
            if slice.start.get("snapshot"):
                reading = Chunk(slice, client.database(connection))
                yield from batches(reading.read(connection))
            else:
                reading = Changes(slice, self._log(connection), connection, client.database(connection), self._names)
                yield from batches(reading.read())
            self._ends[orjson.dumps(slice.start)] = reading.end

    def reached(self, slice: Slice) -> Token:
        return self._ends[orjson.dumps(slice.start)]


SOURCE = MysqlSource
DESTINATION = MysqlDestination
