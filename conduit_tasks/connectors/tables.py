"""Options and marks that connectors of tables share: `schema` (evolve, freeze, quarantine), deletes that empty a table,
and repeated attempts at a commit (Delta, Iceberg)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import DoesNotFit, Unavailable
from conduit_tasks.record.record import Record

MYSQL_EMPTIED, POSTGRES_EMPTIED = "mysql.truncate", "postgres.truncate"
"""Metadata of a delete that takes every row of its table (TRUNCATE)."""
UNCHANGED = "postgres.unchanged"
"""Metadata: fields that are missing in an update, because they are large and did not change (TOAST),
comma-separated."""


def empties(record: Record) -> bool:
    """Returns whether a delete takes every row of its table, whichever database it was emptied in."""
    return MYSQL_EMPTIED in record.metadata or POSTGRES_EMPTIED in record.metadata


ROWS = Option(
    "rows",
    "payload: the payload's fields are the columns; opencdc: the whole record in fixed columns",
    default="payload",
    choices=("payload", "opencdc"),
)
PARTITION_BY = Option("partition-by", "columns of a new table to partition it by, comma-separated")
ROWS_PER_COMMIT = Option("rows-per-commit", "rows written at a time", default="500000")

EVOLVE, FREEZE, QUARANTINE = "evolve", "freeze", "quarantine"
MERGE, FIXED = "merge", "fixed"
"""Values of before: `merge` adds columns and widens none, `fixed` is `freeze`."""
_MEANING = (
    "a record that the columns do not fit: evolve adds and widens columns, freeze refuses the record, quarantine makes "
    "it a dead letter beside the nack window"
)
SCHEMA = Option(
    "schema",
    f"{_MEANING}; merge adds columns only, fixed is freeze",
    default=MERGE,
    choices=(EVOLVE, FREEZE, QUARANTINE, MERGE, FIXED),
)
"""The option of `delta` and `iceberg`, which add columns by default."""


def schema_option(default: str | None, otherwise: str = "") -> Option:
    """Returns the option of a destination whose tables are made by others; `otherwise`: the meaning if it is left
    out."""
    return Option("schema", _MEANING + otherwise, default=default, choices=(EVOLVE, FREEZE, QUARANTINE))


def grows(settings: Mapping[str, str]) -> bool:
    """Returns whether a new field becomes a column."""
    return settings.get("schema") in (EVOLVE, MERGE)


def no_column(names: Iterable[str], also: str = "") -> DoesNotFit:
    """Returns the error of fields that the table has no column for; `also`: another way out."""
    return DoesNotFit(f"the table has no column {', '.join(names)}; add it, or write 'schema: evolve'{also}")


def required(name: str) -> DoesNotFit:
    """Returns the error of a field without a value whose column takes no null."""
    return DoesNotFit(f"field '{name}' has no value, and the table's column requires one")


CONFLICTS = 10
"""Further attempts at a commit after others came first, besides those of the libraries, which need no new look at the
table (deltalake: 15) or no new files (pyiceberg: the table's `commit.retry.num-retries`)."""


class Conflict(Unavailable):
    """Another writer changed the table at the same moment."""


def again(limit: float) -> Retrying:
    """Returns the attempts at a commit while others come first, within most of `limit`, the seconds that a write may
    take."""
    return Retrying(
        retry=retry_if_exception_type(Conflict),
        stop=stop_after_attempt(1 + CONFLICTS) | stop_after_delay(0.8 * limit),
        wait=wait_random_exponential(multiplier=0.05, max=1.6),
        reraise=True,
    )
