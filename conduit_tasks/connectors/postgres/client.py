"""Connections to PostgreSQL by psycopg2: checked URLs, limits of time, the meaning of its errors; and places in its log
as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conduit_tasks.connectors.outcome import clip
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.urls import check_readable

EXTRA = "postgres: psycopg2 is not installed; pip install 'conduit-tasks[postgres]'"
CONNECT = 10
"""Seconds to connect to a server."""
KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Settings by which libpq notices within a minute that a server's machine is gone."""
_URL = re.compile(r"postgres(ql)?(\+\w+)?://")


def library() -> Any:
    """Returns psycopg2. Raises ConfigError if it is not installed."""
    try:
        import psycopg2
    except ImportError:
        raise ConfigError(EXTRA) from None
    import psycopg2.errors
    import psycopg2.extensions
    import psycopg2.sql

    return psycopg2


def checked_url(text: str) -> str:
    """Returns a URL as libpq takes it, `sslmode` and certificates included; SQLAlchemy's `+driver` is left out. Raises
    ConfigError, which does not repeat the URL: it may hold a password, and libpq would print the part that it
    misread."""
    if not _URL.match(text):
        raise ConfigError(
            "postgres: option 'url' is no PostgreSQL URL; write postgresql://user:password@host:5432/name"
        )
    check_readable(text, "postgres: option 'url'")
    return _URL.sub("postgresql://", text, count=1)


def connect(url: str) -> Any:
    """Opens a connection that notices if its server's machine is gone."""
    return library().connect(url, connect_timeout=CONNECT, application_name="conduit", **KEEPALIVE)


@contextmanager
def connected(url: str, failed: type[ConduitError], timeout: float) -> Iterator[Any]:
    """Yields a connection that is closed at the end. Values have the form of `postgres.values`; each statement is a
    transaction of its own, and takes `timeout` seconds at most.

    Raises `failed` if the server does not answer, goes away or refuses a statement; ConfigError if the URL cannot be
    read.
    """
    psycopg2 = library()
    from conduit_tasks.connectors.postgres.values import SETTINGS

    try:
        connection = connect(url)
    except psycopg2.OperationalError as error:
        raise failed(f"postgres: no connection: {said(error)}") from None
    except psycopg2.ProgrammingError:
        raise ConfigError(
            "postgres: option 'url' cannot be read; special characters are written as %40 and so on"
        ) from None
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"{SETTINGS}; SET statement_timeout = {int(timeout * 1000)}")
        yield connection
    except psycopg2.Error as error:
        raise failed(f"postgres: {said(error)}") from None
    finally:
        connection.close()


def said(error: Exception) -> str:
    """Returns the server's own words, on one line."""
    return clip(str(error).strip() or type(error).__name__)


def lsn_number(text: str) -> int:
    """Returns a place in the log, `16/B374D848`, as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    """Returns a place in the log as PostgreSQL writes it: numbers of 64 bits are not safe in JSON."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"
