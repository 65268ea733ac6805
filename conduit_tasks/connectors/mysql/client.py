"""Connections to MySQL and MariaDB by PyMySQL, and the meaning of its errors."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.sql.errors import of_the_rows
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.urls import check_readable

EXTRA = "mysql: PyMySQL is not installed; pip install 'conduit-tasks[mysql]'"
CONNECT = 10
"""Seconds to connect to a server."""
_URL = re.compile(r"(mysql|mariadb)(\+\w+)?://")
_TLS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
QUERY = (*_TLS, "unix_socket")
"""Options that a URL may have behind `?`: PyMySQL's names."""
_SWITCHES = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")

SESSION = "SET time_zone = '+00:00'"
PLAIN = f"{SESSION}, sql_mode = ''"
"""Of connections that read: a mode may change what a query gives (PAD_CHAR_TO_FULL_LENGTH), and the log has none."""

NO_TABLE, NO_COLUMN = 1146, 1054
LOCKED = (1205, 1213)
"""A lock that was waited for too long; a deadlock."""
PURGED = 1236
"""The binary log does not have what is asked for."""
_RIGHTS = (1044, 1045, 1142, 1143, 1227, 1698)
_ROWS = (
    *(1048, 1118, 1153, 1264, 1265, 1292, 1364, 1366, 1369, 1406, 1411, 1441, 1690),
    *(3140, 3141, 3156, 3730, 3819, 3903, 4025, 4078),
)
"""Errors of rows, some of which have the general state HY000: values out of range or of a wrong type, checks, a row or
a packet that is too large."""
_FILES = (1049, 1051, 1064, 1091, 1109, NO_TABLE, 1149, 1166, 1305, 1348, 1471, 3105)
"""Errors of statements: a database or a table that is not there, a view that cannot be written."""


def library() -> Any:
    """Returns PyMySQL. Raises ConfigError if it is not installed."""
    try:
        import pymysql
    except ImportError:
        raise ConfigError(EXTRA) from None
    return pymysql


@cache
def _connection_class() -> Any:
    """Returns PyMySQL's class of connections, for which all without options of TLS share a context. Each would make its
    own and read the machine's certificates for it, which takes 22 ms, to check none: without options PyMySQL uses TLS
    where the server has it, and trusts whatever certificate that has. Raises ConfigError as `library`."""
    connection: Any = library().connections.Connection

    class Sharing(connection):
        unchecked: Any = None

        def _create_ssl_ctx(self, options: Any) -> Any:
            if options:
                return super()._create_ssl_ctx(options)
            if Sharing.unchecked is None:
                Sharing.unchecked = super()._create_ssl_ctx({})
            return Sharing.unchecked

    return Sharing


@dataclass(frozen=True)
class Server:
    """A server and a database, from a URL; not shown, because it has a password."""

    arguments: dict[str, Any] = field(repr=False)

    @property
    def database(self) -> str:
        return str(self.arguments.get("database") or "")

    def connect(self, limit: float, **more: Any) -> Any:
        """Opens a connection whose reads and writes wait for `limit` seconds at most. Raises
        ConfigError if a file of TLS cannot be read."""
        seconds = max(1, int(limit))
        given = {
            "read_timeout": seconds,
            "write_timeout": seconds,
            "init_command": SESSION if "sql_mode" in more else PLAIN,
            **more,
        }
        try:
            connection = _connection_class()(
                **{**self.arguments, "connect_timeout": CONNECT, "charset": "utf8mb4", "autocommit": True, **given}
            )
        except OSError as error:
            # Of the server itself PyMySQL makes an error of its own.
            raise ConfigError(
                f"mysql: a file of option 'url' (ssl_ca, ssl_cert, ssl_key) cannot be read: {clip(str(error))}"
            ) from None
        with suppress(OSError, AttributeError):
            # A server whose machine is gone is noticed within a minute, as for PostgreSQL.
            for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
                connection._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return connection


def server(text: str, option: str = "mysql: option 'url'") -> Server:
    """Reads a URL. Raises ConfigError, which does not repeat it: it may hold a password."""
    if not _URL.match(text):
        raise ConfigError(f"{option} is no MySQL URL; write mysql://user:password@host:3306/name")
    check_readable(text, option)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "localhost", parts.port or 3306
    except ValueError:
        raise ConfigError(f"{option} cannot be read; write mysql://user:password@host:3306/name") from None
    arguments: dict[str, Any] = {"host": host, "port": port, "user": unquote(parts.username or "")}
    # Bytes: PyMySQL would write a text in Latin-1.
    arguments["password"] = unquote(parts.password or "").encode()
    arguments["database"] = unquote(parts.path.removeprefix("/")) or None
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in QUERY:
            raise ConfigError(f"{option}: '{name}' is not known behind '?'; there are {', '.join(QUERY)}")
        if name in _SWITCHES and value.lower() not in ("true", "false"):
            raise ConfigError(f"{option}: {name} is true or false")
        arguments[name] = value.lower() == "true" if name in _SWITCHES else value
    return Server(arguments)


@contextmanager
def connected(of: Server, failed: type[ConduitError], timeout: float) -> Iterator[Any]:
    """Yields a connection that is closed at the end. A statement may take `timeout` seconds.

    Raises `failed` if the server does not answer, goes away or refuses a statement; ConfigError if a right is missing.
    """
    with translated(failed):
        connection = of.connect(timeout)
        try:
            with connection.cursor() as cursor:
                limit_statements(cursor, timeout)
            yield connection
        finally:
            close(connection)


@contextmanager
def translated(failed: type[ConduitError]) -> Iterator[None]:
    """Raises `failed` for an error of PyMySQL, and ConfigError if a right is missing."""
    pymysql = library()
    try:
        yield
    except pymysql.Error as error:
        if code_of(error) in _RIGHTS:
            raise ConfigError(f"mysql: {said(error)}; {rights(error)}") from None
        raise failed(f"mysql: {said(error)}") from None
    except OSError as error:
        raise failed(f"mysql: {clip(str(error) or type(error).__name__)}") from None


_ENDED = (1053, 1317, 1927, 1969, 3024)
"""A statement or a connection was ended: by KILL, by a limit of time, or by a shutdown."""


def rights(error: Any) -> str:
    if code_of(error) in (1045, 1698):
        return "correct user and password in option 'url'"
    return "GRANT what is missing to the user of option 'url'"


def limit_statements(cursor: Any, seconds: float) -> None:
    """Has the server end statements that take longer; MySQL does so for SELECT alone."""
    if is_mariadb(cursor.connection):
        cursor.execute(f"SET max_statement_time = {seconds:f}")
    else:
        cursor.execute(f"SET max_execution_time = {int(seconds * 1000)}")


def is_mariadb(connection: Any) -> bool:
    return "mariadb" in str(connection.get_server_info()).lower()


def database(connection: Any) -> str:
    """Returns the database that a connection is in, as the server writes it; "" if none."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT DATABASE()")
        return str(cursor.fetchone()[0] or "")


def close(connection: Any) -> None:
    """Closes a connection that may be gone already."""
    with suppress(library().Error, OSError):
        connection.close()


def code_of(error: Any) -> int:
    """Returns the number of an error; 0 if it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def kind_of(error: Any) -> str:
    """Returns who is at fault for an error of a write: `rows`, `file` (the pipeline's), or `server`."""
    pymysql = library()
    code = code_of(error)
    if code in _ENDED or str(getattr(error, "sqlstate", None) or "").startswith(("70", "08")):
        return "server"
    if code in _RIGHTS or code in _FILES:
        return "file"
    if isinstance(error, pymysql.IntegrityError | pymysql.DataError) or code in _ROWS or of_the_rows(error):
        return "rows"
    # 45: a trigger's own SIGNAL.
    if str(getattr(error, "sqlstate", None) or "").startswith("45"):
        return "rows"
    return "file" if isinstance(error, pymysql.ProgrammingError | pymysql.NotSupportedError) else "server"


def said(error: Any) -> str:
    """Returns the server's own words, on one line."""
    words = [str(part) for part in error.args if part]
    return clip(f"{words[1]} ({words[0]})" if len(words) > 1 else (words[0] if words else type(error).__name__))


def quoted(*names: str) -> str:
    """Returns names as SQL has them, joined by dots."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)
