"""The catalog of an Iceberg table: its properties, which may hold secrets, and the meaning of its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conduit_tasks.connectors.hiding import Hide, hiding, password_of
from conduit_tasks.connectors.tables import Conflict
from conduit_tasks.errors import ConduitError, ConfigError, Refused, Unavailable
from conduit_tasks.settings import settings as installation
from conduit_tasks.spool.durable import make_folders
from conduit_tasks.urls import check_no_login, check_readable

CATALOG = "catalog."
"""Properties of pyiceberg's catalog, passed on: `catalog.uri`, `catalog.s3.region` and the like."""
NAME = "catalog.name"
"""The name of the catalog; a SQL catalog keeps its tables under it."""
DEFAULT_NAME = "default"
TYPES = ("rest", "sql", "hive", "glue", "dynamodb", "bigquery")
"""Kinds of catalogs that pyiceberg has, but the one in memory, which is gone with its process."""
_POSTGRES = "postgresql+psycopg2"
_SHOWN = frozenset({"name", "type", "warehouse", "prefix"})
"""Properties that may be in a message, besides regions and addresses."""


def check_installed() -> None:
    """Raises ConfigError if the package `pyiceberg` is not installed."""
    try:
        import_module("pyiceberg")
    except ImportError:
        raise ConfigError("iceberg: the package pyiceberg is missing: pip install 'conduit-tasks[iceberg]'") from None


def name_of(settings: Mapping[str, str]) -> str:
    """Returns the name of the catalog."""
    return settings.get(NAME, "").strip() or DEFAULT_NAME


def check_catalog(settings: Mapping[str, str]) -> None:
    """Raises ConfigError if the settings name no catalog that lasts, or if an address that is shown has a password."""
    if not _properties(settings) and NAME not in settings:
        raise ConfigError("iceberg: option 'catalog.uri' is missing: the catalog's address, such as sqlite:///c.db")
    kind, uri = settings.get(f"{CATALOG}type", "").strip().lower(), settings.get(f"{CATALOG}uri", "")
    if kind and kind not in TYPES:
        raise ConfigError(f"iceberg: option 'catalog.type' cannot be '{kind}'; it is one of {', '.join(TYPES)}")
    if uri.startswith("sqlite") and not _file_of(uri):
        raise ConfigError("iceberg: option 'catalog.uri' names no file, so the catalog would be gone with its process")
    for name, value in settings.items():
        if name.startswith(CATALOG) and "://" in value:
            if _is_sql(value):
                # The path of a SQLite file is not escaped, and holds no password.
                if not value.startswith("sqlite"):
                    check_readable(value, f"iceberg: option '{name}'")
            else:
                check_no_login(value, f"iceberg: option '{name}'", "give what it needs as options of their own")


def properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties under pyiceberg's own names. A SQL catalog's SQLite file and its warehouse, if that is a
    folder, are relative to home."""
    out = _properties(settings)
    scheme, colon, rest = out.get("uri", "").partition("://")
    if file := _file_of(out.get("uri", "")):
        out["uri"] = out["uri"].replace(file, installation().path(file), 1)
    elif scheme in ("postgresql", "postgres"):
        # SQLAlchemy's own default is not the driver that this project's extra brings.
        out["uri"] = f"{_POSTGRES if find_spec('psycopg2') else 'postgresql+psycopg'}{colon}{rest}"
    if (out.get("type", "").lower() == "sql" or _is_sql(out.get("uri", ""))) and "://" not in out.get(
        "warehouse", "://"
    ):
        out["warehouse"] = installation().path(out["warehouse"])
    return out


def loaded(settings: Mapping[str, str]) -> Any:
    """Returns the catalog, open. Raises what pyiceberg raises."""
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError, IntegrityError

    made = properties(settings)
    if file := _file_of(made.get("uri", "")):
        make_folders(Path(file).parent)
    tries = 3
    while True:
        try:
            return load_catalog(name_of(settings), **made)
        except DBAPIError as error:
            # A SQL catalog creates its two tables if they are missing; another task may do so at the same moment.
            tries -= 1
            if not tries or not (isinstance(error, IntegrityError) or "exists" in str(error.orig)):
                raise


def create_namespace(catalog: Any, name: tuple[str, ...]) -> None:
    """Creates a namespace unless it is there. Raises what pyiceberg raises; an error of a SQL catalog's database is
    none if another task has created it at the same moment."""
    from sqlalchemy.exc import DBAPIError

    try:
        catalog.create_namespace_if_not_exists(name)
    except DBAPIError:
        if not catalog.namespace_exists(name):
            raise


def secrets_of(settings: Mapping[str, str]) -> Hide:
    """Returns a function that hides the catalog's secrets in a text."""
    found = []
    for name, value in _properties(settings).items():
        if "://" in value:
            # The password is hidden as it is written there, and as it is meant.
            found += [value, password_of(value)] if password_of(value) else []
        elif (
            name not in _SHOWN and not name.endswith(("region", "endpoint")) and value.lower() not in ("true", "false")
        ):
            # Client and secret are one property; either may be in a message.
            found += [value, *value.split(":", 1)]
    return hiding(found)


@contextmanager
def translated(table: str, hide: Hide) -> Iterator[None]:
    """Raises the project's errors for those of pyiceberg and of what it uses (SEMANTICS T6)."""
    import pydantic
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    def said(error: BaseException, what: str) -> str:
        return f"iceberg: table {table} {what}: {hide(' '.join(str(error).split()) or type(error).__name__)}"

    may_recover = (
        *(exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError),
        *(exceptions.SignError, exceptions.WaitingForLockException),
    )
    try:
        yield
    except ConduitError:
        raise
    except (exceptions.CommitFailedException, exceptions.ValidationException) as error:
        raise Conflict(said(error, "was changed at the same moment")) from None
    except (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError) as error:
        raise ConfigError(said(error, "is not open to these credentials (options 'catalog.*')")) from None
    except exceptions.BadRequestError as error:
        raise ConfigError(said(error, "is not what the catalog takes")) from None
    except (exceptions.NoSuchPropertyException, exceptions.NotInstalledError, ImportError) as error:
        raise ConfigError(said(error, "cannot be opened (options 'catalog.*')")) from None
    except NotImplementedError as error:
        raise ConfigError(said(error, "cannot be written by pyiceberg")) from None
    except (OSError, SQLAlchemyError, pydantic.ValidationError, exceptions.RESTError) as error:
        # What requests raises is an OSError. An answer that cannot be read is a ValueError, too, and says nothing about
        # the rows.
        raise Unavailable(said(error, "cannot be written")) from None
    except (exceptions.ValidationError, ValueError, TypeError) as error:
        raise Refused(said(error, "does not take these rows")) from None
    except may_recover as error:
        raise Unavailable(said(error, "cannot be written")) from None


def _properties(settings: Mapping[str, str]) -> dict[str, str]:
    return {n.removeprefix(CATALOG): v for n, v in settings.items() if n.startswith(CATALOG) and n != NAME}


def _file_of(uri: str) -> str:
    """Returns the SQLite file of an address; "" if there is none."""
    scheme, _, path = uri.partition(":///")
    file = path.partition("?")[0]
    return "" if scheme.partition("+")[0] != "sqlite" or file.startswith((":memory:", "file:")) else file


def _is_sql(uri: str) -> bool:
    return uri.partition("://")[0].partition("+")[0] in ("sqlite", "postgresql", "postgres")
