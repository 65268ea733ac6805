"""Meaning of a database's error: the rows are at fault, the database is, or the pipeline file (SEMANTICS T6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from conduit_tasks.connectors.outcome import clip
from conduit_tasks.errors import ConfigError, DoesNotFit, Refused, Unavailable


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raises the project's errors for the database's; `where` begins each message.

    Refused: a constraint, a value that its column cannot hold, a trigger that refuses. Unavailable: no connection, a
    lock, a full disk. ConfigError: a table, column or right that is missing, which a retry does not bring.
    """
    try:
        yield
    except exc.DBAPIError as error:
        if isinstance(error, exc.IntegrityError | exc.DataError) or of_the_rows(error.orig):
            raise refused(error.orig)(_said(where, error)) from error.orig
        if isinstance(error, exc.OperationalError | exc.InternalError) or error.connection_invalidated:
            raise Unavailable(_said(where, error)) from error
        if _binding(error):
            raise Refused(_said(where, error)) from error.orig
        raise ConfigError(f"{_said(where, error)}; fix the table, the rights or `columns`") from error
    except OverflowError as error:
        # Drivers refuse some values before the database sees them: integers beyond 64 bits, NUL in text.
        raise DoesNotFit(f"{where}: {clip(str(error))}") from error
    except ValueError as error:
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
    state = state_of(error)
    if len(state) != 5:
        return False
    class_ = state[:2]
    if state in _TYPES:
        return True
    return class_ in ("21", "22", "23", "27", "38", "39", "44") or (class_[0] in _BEYOND and class_ not in _SERVERS)


def state_of(error: object) -> str:
    """Returns the SQLSTATE of a driver's error, or of the one that SQLAlchemy wrapped; "" if there is none."""
    error = getattr(error, "orig", error)
    state = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else ""


_NOT_NULL = "23502"
_SQLITE = (20, 3091, 1299)
"""SQLITE_MISMATCH, SQLITE_CONSTRAINT_DATATYPE (a `STRICT` table), SQLITE_CONSTRAINT_NOTNULL."""


def refused(error: object) -> type[Refused]:
    """Returns the error for a row that a database refuses, by its driver's error: of the columns, if they cannot hold
    a value (SQLSTATE's class 22, another type) or require one."""
    state = state_of(error)
    of_columns = state[:2] == "22" or state in _TYPES or state == _NOT_NULL
    return DoesNotFit if of_columns or getattr(error, "sqlite_errorcode", None) in _SQLITE else Refused


def _binding(error: exc.DBAPIError) -> bool:
    """Returns whether the driver could not pass a value on, as SQLite says of types that it does not know."""
    text = str(error.orig)
    return isinstance(error, exc.InterfaceError | exc.ProgrammingError) and (
        "binding parameter" in text or "can't adapt type" in text
    )


def _said(where: str, error: exc.DBAPIError) -> str:
    """Returns the driver's own words, without the statement and its parameters, because they are data."""
    return f"{where}: {clip(str(error.orig))}"
