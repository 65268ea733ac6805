"""Meaning of a database's error: the rows are at fault, the database is, or the pipeline file (SEMANTICS T6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from conduit_tasks.connectors.outcome import clip
from conduit_tasks.errors import ConfigError, Refused, Unavailable


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raises the project's errors for the database's; `where` begins each message.

    Refused: a constraint, a value that its column cannot hold, a trigger that refuses. Unavailable: no connection, a
    lock, a full disk. ConfigError: a table, column or right that is missing, which a retry does not bring.
    """
    try:
        yield
    except (exc.IntegrityError, exc.DataError) as error:
        raise Refused(_said(where, error)) from error.orig
    except exc.DBAPIError as error:
        if of_the_rows(error.orig):
            raise Refused(_said(where, error)) from error.orig
        if isinstance(error, exc.OperationalError | exc.InternalError) or error.connection_invalidated:
            raise Unavailable(_said(where, error)) from error
        if _binding(error):
            raise Refused(_said(where, error)) from error.orig
        raise ConfigError(f"{_said(where, error)}; fix the table, the rights or `columns`") from error
    except (OverflowError, ValueError) as error:
        # Drivers refuse some values before the database sees them: NUL in text, integers beyond 64 bits.
        raise Refused(f"{where}: {clip(str(error))}") from error
    except exc.SQLAlchemyError as error:
        raise Unavailable(f"{where}: {clip(str(error))}") from error
    except OSError as error:
        raise Unavailable(f"{where}: {clip(str(error))}") from error


_BEYOND = "56789IJKLMNOPQRSTUVWXYZ"
"""First characters of the classes of SQLSTATE that the standard leaves to servers and users."""
_TYPES = ("42804", "42846")
"""SQLSTATE of a value that has another type than its column, or that cannot be made to fit."""
_SERVERS = ("53", "55", "57", "58", "72", "XX")
"""Classes of SQLSTATE, beyond the standard's, for faults of the server, not of the rows."""


def of_the_rows(error: object) -> bool:
    """Returns whether the rows are at fault, by the SQLSTATE of a driver's error: a row that a trigger, a view's check
    option or a limit of the server refuses would otherwise hold up all rows after it, for ever.

    Of the standard's classes these count: cardinality, data, constraints, errors that routines raise, views' check
    options. Of the other classes all count that are not the server's: limits (54), `RAISE` (P0), codes that a routine
    made up. A violated policy of row-level security has the code of a missing right; the server's function that raised
    it tells it apart, in any language. A value of a type that its column cannot take has the code of a wrong statement;
    but the statement is the same for all rows, which differ in their values only.
    """
    if getattr(getattr(error, "diag", None), "source_function", None) == "ExecWithCheckOptions":
        return True
    state = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    if not isinstance(state, str) or len(state) != 5:
        return False
    class_ = state[:2]
    if state in _TYPES:
        return True
    return class_ in ("21", "22", "23", "27", "38", "39", "44") or (class_[0] in _BEYOND and class_ not in _SERVERS)


def _binding(error: exc.DBAPIError) -> bool:
    """Returns whether the driver could not pass a value on, as SQLite says of types that it does not know."""
    text = str(error.orig)
    return isinstance(error, exc.InterfaceError | exc.ProgrammingError) and (
        "binding parameter" in text or "can't adapt type" in text
    )


def _said(where: str, error: exc.DBAPIError) -> str:
    """Returns the driver's own words, without the statement and its parameters, because they are data."""
    return f"{where}: {clip(str(error.orig))}"
