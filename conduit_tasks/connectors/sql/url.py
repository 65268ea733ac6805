"""The option `url` of the `sql` connector: its driver, limits of time for statements and locks, and no password in
messages."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from conduit_tasks.connectors.postgres.client import CONNECT, KEEPALIVE
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings as installation
from conduit_tasks.urls import check_readable


def with_driver(url: URL) -> URL:
    """Returns `postgresql://` with the driver that is installed, psycopg2 before psycopg; SQLAlchemy's default
    changed."""
    if url.drivername != "postgresql":
        return url
    return url.set(drivername="postgresql+psycopg2" if find_spec("psycopg2") else "postgresql+psycopg")


def limits(url: URL, statement: float, lock: float | None = None) -> dict[str, Any]:
    """Returns the arguments of a connection with limits in seconds: `statement` for a statement, `lock` for waiting for
    a lock. SQLite has limits for locks only; for databases other than SQLite and PostgreSQL no such arguments are
    known."""
    if url.get_backend_name() == "sqlite":
        return {} if lock is None else {"timeout": lock}
    if url.get_backend_name() != "postgresql":
        return {}
    options = f"-c statement_timeout={max(1, int(statement * 1000))}"
    if lock is not None:
        options += f" -c lock_timeout={int(lock * 1000)}"
    # Options in the address itself are kept.
    options = f"{url.query.get('options', '')} {options}".strip()
    return {"connect_timeout": CONNECT, **KEEPALIVE, "options": options}


def address(text: str) -> URL:
    """Reads the URL. Raises ConfigError, which does not repeat the text: it may hold a password."""
    # Heroku and others still write postgres://.
    text = f"postgresql://{text.removeprefix('postgres://')}" if text.startswith("postgres://") else text
    if not text.startswith("sqlite"):
        # The path of a file is not escaped, and holds no password.
        check_readable(text, "sql: option 'url'")
    try:
        url = with_driver(sa.make_url(text))
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError, ImportError) as error:
        said = str(error) if isinstance(error, (NoSuchModuleError, ImportError)) else "it cannot be read"
        raise ConfigError(
            f"sql: option 'url' is no database URL: {said}; write sqlite:///path or postgresql://…"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return url.set(database=installation().path(url.database))
    return url
