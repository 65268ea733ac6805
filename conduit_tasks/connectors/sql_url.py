"""The option `url` of the `sql` connector."""

from __future__ import annotations

from importlib.util import find_spec

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings as installation
from conduit_tasks.urls import check_readable


def with_driver(url: URL) -> URL:
    """`postgresql://` with the driver that is installed, psycopg2 before psycopg; SQLAlchemy's default changed."""
    if url.drivername != "postgresql":
        return url
    return url.set(drivername="postgresql+psycopg2" if find_spec("psycopg2") else "postgresql+psycopg")


def address(text: str) -> URL:
    """Raises ConfigError; the text may hold a password and is not repeated."""
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
