"""Places in the binary log, at the ends of transactions: their order, where the log ends, and whether the server logs
what is needed.

A place is `{"file", "pos", "gtid"}`: `gtid` is the set of transactions until there, "" if the server has none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from conduit_tasks.connectors.mysql import client, gtids
from conduit_tasks.errors import ConfigError, SourceError

Place = dict[str, Any]

AGAIN = "begin again under a new connector id, which takes a snapshot first"


def reached(place: Place, upto: Place) -> bool:
    """Returns whether a place is at or behind another one."""
    if place["gtid"] and upto["gtid"]:
        return gtids.covers(place["gtid"], upto["gtid"])
    return _order(place) >= _order(upto)


def _order(place: Place) -> tuple[int, str, int]:
    """Returns what files sort by: behind `bin.999999` comes `bin.1000000`."""
    return len(place["file"]), place["file"], place["pos"]


def now(connection: Any, databases: Collection[str] = ()) -> Place:
    """Returns the end of the log, with `server`: the name of the server that this is, if its log has no GTIDs. Raises
    ConfigError if it has no log, or one without rows, or without those of one of `databases`."""
    pymysql, mariadb = client.library(), client.is_mariadb(connection)
    with connection.cursor() as cursor:
        known = ""
        if mariadb:
            # Not `binlog_gtid_pos` of the place, for which the server reads the log's file up to there. The set is
            # asked for first, so that it has nothing that is behind the place.
            cursor.execute("SELECT @@global.gtid_binlog_pos")
            known = cursor.fetchone()[0]
        try:
            row = _status(cursor)
        except pymysql.OperationalError as error:
            if client.code_of(error) == 1227:
                right = "BINLOG MONITOR" if mariadb else "REPLICATION CLIENT"
                raise ConfigError(f"mysql: {client.said(error)}; GRANT {right} ON *.* to the user of 'url'") from None
            raise
        if not row:
            raise ConfigError("mysql: the server keeps no log of changes; start it with log_bin (MySQL: --log-bin)")
        only, left_out = ({name.strip() for name in str(row[n] or "").split(",")} - {""} for n in (2, 3))
        if missing := sorted(each for each in databases if each in left_out or (only and each not in only)):
            option = "binlog-ignore-db" if missing[0] in left_out else "binlog-do-db"
            raise ConfigError(f"mysql: the server's log leaves out database {missing[0]} ({option} in its file)")
        cursor.execute("SELECT @@global.binlog_format, @@global.binlog_row_image, @@global.binlog_checksum")
        names, rights = ("binlog_format", "binlog_row_image", "binlog_checksum"), ("ROW", "FULL", "CRC32")
        for name, value, wanted in zip(names, cursor.fetchone(), rights):
            if str(value).upper() != wanted:
                raise ConfigError(f"mysql: {name} is {value}; SET GLOBAL {name} = {wanted}, and in the server's file")
        place: Place = {"file": row[0], "pos": int(row[1]), "gtid": ""}
        if mariadb:
            place["gtid"] = _readable(known)
            cursor.execute("SELECT @@global.server_id")
        else:
            cursor.execute("SELECT @@global.gtid_mode")
            if cursor.fetchone()[0] == "ON":
                place["gtid"] = _readable(row[4])
            cursor.execute("SELECT @@global.server_uuid")
        if not place["gtid"]:
            place["server"] = str(cursor.fetchone()[0])
    return place


def committed(connection: Any, databases: Collection[str] = ()) -> Place:
    """Returns a place as `now` does, before which every transaction is to be seen by a query. The end of the log is not
    such a place: a transaction is written to the log before it is committed, and may wait in between (semi-sync,
    AFTER_SYNC)."""
    place = now(connection, databases)
    if not client.is_mariadb(connection):
        # A set of GTIDs has a transaction when it is committed; the place by file is that of the log.
        return place
    with connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        found = {name.lower(): value for name, value in cursor.fetchall()}
        cursor.execute("COMMIT")
        place.update(file=found["binlog_snapshot_file"], pos=int(found["binlog_snapshot_position"]))
        cursor.execute("SELECT binlog_gtid_pos(%s, %s)", [place["file"], place["pos"]])
        place["gtid"] = _readable(cursor.fetchone()[0])
        if not place["gtid"] and "server" not in place:
            cursor.execute("SELECT @@global.server_id")
            place["server"] = str(cursor.fetchone()[0])
    return place


def _status(cursor: Any) -> Any:
    """Asks by MySQL's newer name, then by the older one, which MariaDB has, too."""
    try:
        cursor.execute("SHOW BINARY LOG STATUS")
    except client.library().ProgrammingError:
        cursor.execute("SHOW MASTER STATUS")
    return cursor.fetchone()


def _readable(text: str | None) -> str:
    """Returns a set of transactions; "" for one with tags (MySQL 8.3), which the library cannot ask for: such a log is
    read by file and position."""
    found = gtids.normal(text or "")
    return "" if any(":" in part and not part.split(":")[1][:1].isdigit() for part in found.split(",")) else found


def by_gtid(connection: Any, place: Place) -> Place:
    """Returns a place with the set of transactions until there, if this server is the one that it is of and can say
    so: MariaDB, which had written nothing when the place was made."""
    if place["gtid"] or not client.is_mariadb(connection):
        return place
    with connection.cursor() as cursor:
        cursor.execute("SELECT binlog_gtid_pos(%s, %s)", [place["file"], place["pos"]])
        return {**place, "gtid": _readable(cursor.fetchone()[0])}


def check_server(place: Place, here: Place) -> None:
    """Raises SourceError if a position by file is of another server."""
    if not place["gtid"] and "server" in place and "server" in here and place["server"] != here["server"]:
        raise SourceError(
            "mysql: this is another server, and the position is one by file, which means nothing here. Go back to the "
            f"old server, or {AGAIN}; with GTIDs (gtid_mode) another server can take over"
        )
