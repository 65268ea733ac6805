"""What destinations share that add commits to a table of files (Delta, Iceberg)."""

from __future__ import annotations

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import Unavailable

ROWS = Option(
    "rows",
    "payload: the payload's fields are the columns; opencdc: the whole record in fixed columns",
    default="payload",
    choices=("payload", "opencdc"),
)
PARTITION_BY = Option("partition-by", "columns of a new table to partition it by, comma-separated")
SCHEMA = Option(
    "schema",
    "a field that the table has no column for: merge adds one, fixed refuses the record",
    default="merge",
    choices=("merge", "fixed"),
)
ROWS_PER_COMMIT = Option("rows-per-commit", "rows written at a time", default="500000")

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
