"""What a database's error means: the rows are at fault, the database is, or the pipeline file (SEMANTICS T6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from conduit_tasks.delivery.outcome import clip
from conduit_tasks.errors import ConfigError, Refused, Unavailable


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raises the project's errors for the database's; `where` begins each message.

    Refused: a constraint, a value that its column cannot hold, a trigger that refuses. Unavailable: no connection, a
    lock, a full disk. ConfigError: a table, column or right that is not there, which a retry does not bring.
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
        raise ConfigError(f"{_said(where, error)}; mend the table, the rights or `columns`") from error
    except (OverflowError, ValueError) as error:
        # Drivers refuse some values before the database sees them: NUL in text, integers beyond 64 bits.
        raise Refused(f"{where}: {clip(str(error))}") from error
    except exc.SQLAlchemyError as error:
        raise Unavailable(f"{where}: {clip(str(error))}") from error
    except OSError as error:
        raise Unavailable(f"{where}: {clip(str(error))}") from error


_BEYOND = "56789IJKLMNOPQRSTUVWXYZ"
"""What classes of SQLSTATE begin with that the standard leaves to servers and users."""
_TYPES = ("42804", "42846")
"""SQLSTATE: a value of another type than its column, or one that cannot be made to fit."""
_SERVERS = ("53", "55", "57", "58", "72", "XX")
"""Classes of SQLSTATE beyond the standard's that are the server's trouble, not the rows'."""


def of_the_rows(error: object) -> bool:
    """Whether the SQLSTATE of a driver's error lays it to the rows: a row that a trigger, a view's check option or a
    limit of the server refuses would otherwise hold up all that come after it, for ever.

    Of the standard's classes: cardinality, data, constraints, what routines raise, views' check options. Of the others
    all that are not the server's: limits (54), `RAISE` (P0), codes that a routine made up. A policy of row-level
    security has the code of a missing right; where it was raised tells it apart, in any language. A value of a type
    that its column cannot take has one of a wrong statement, which is the same for all rows but for their values.
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
    """Whether the driver could not pass a value on, as SQLite says of types that it does not know."""
    text = str(error.orig)
    return isinstance(error, exc.InterfaceError | exc.ProgrammingError) and (
        "binding parameter" in text or "can't adapt type" in text
    )


def _said(where: str, error: exc.DBAPIError) -> str:
    """The driver's own words; the statement and its parameters stay out, they are data."""
    return f"{where}: {clip(str(error.orig))}"
