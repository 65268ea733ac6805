"""All errors of the project: one root, one line per class. A message says what happened and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Slice


class ConduitError(Exception):
    """Root of all errors raised by this project."""


class ConfigError(ConduitError):
    """A file, option or environment variable is wrong; the message names it."""


class AcceptanceFailed(ConduitError):
    """A connector does not keep its contract; the message lists the failed checks and how each failed."""


class ConnectionMissing(ConduitError):
    """Airflow has no connection of this name, or its secrets backend does not answer; the message names it."""


class Outdated(ConfigError):
    """A micro-batch was planned by a version of the pipeline file that is not the one present here."""


class UnknownPlugin(ConfigError):
    """No connector or processor has this name; the message lists the nearest."""


class InvariantBroken(ConduitError):
    """One of the numbered invariants does not hold; never tolerated, never retried."""


class BrokerUnavailable(ConduitError):
    """Redis cannot be reached or answers with an error that a retry may resolve."""


class BrokerFull(BrokerUnavailable):
    """Redis has reached its maxmemory: it takes nothing new until memory is freed or maxmemory is raised."""


class NotDurable(ConduitError):
    """The Redis server would lose or evict data (SEMANTICS T1)."""


class StateLost(ConduitError):
    """Redis has no state of a pipeline, but its spool has (SEMANTICS X7); the message names what restores it."""


class Fenced(ConduitError):
    """The lease was lost: a newer token exists. The holder must stop at once and change nothing."""


class LeaseHeld(ConduitError):
    """Another owner holds the lease, until `until` (µs since the epoch, server clock)."""

    def __init__(self, node: str, owner: str, until: int) -> None:
        super().__init__(f"the lease of {node} is held by {owner} until {until}")
        self.node, self.owner, self.until = node, owner, until

    def __reduce__(self) -> tuple[type[LeaseHeld], tuple[str, str, int]]:
        return type(self), (self.node, self.owner, self.until)


class PipelineStopped(ConduitError):
    """The pipeline is stopped or degraded; the first error is in the message."""


class NotStopped(ConduitError):
    """The requested operation needs a stopped pipeline with nothing in flight."""


class SparkLost(ConduitError):
    """A Spark Connect server cannot be reached, ended, or does not know the session any more; the attempt ends, and the
    next one begins a new session."""


class SpoolError(ConduitError):
    """A spool file is missing, changed or cannot be written; the message names it."""


class SpoolGone(SpoolError):
    """A spool file is not there: it was removed, with its micro-batch or by somebody."""


class SourceError(ConduitError):
    """A source cannot be planned or read; the message names the part."""


class PartLeftOut(SourceError):
    """A part of a source cannot be planned; `slices` are the slices of the parts that can still be read."""

    def __init__(self, message: str, slices: list[Slice]) -> None:
        super().__init__(message)
        self.slices = slices

    def __reduce__(self) -> tuple[type[PartLeftOut], tuple[str, list[Slice]]]:
        return type(self), (str(self), self.slices)


class Missing(SourceError):
    """Planned data is gone or has changed; the message names it and the ways out."""


class AckFailed(ConduitError):
    """A source could not be reached for its ack; it may recover (SEMANTICS C8)."""


class RecordError(ConduitError):
    """One record cannot be processed: it is nacked alone, with this message, as a dead letter of this class."""

    error_class = "processor"


class SchemaDrift(RecordError):
    """One record does not match its schema; fix its producer or the schema, then send the dead letter again."""

    error_class = "schema"


class Unwritable(RecordError):
    """One record cannot be written as JSON, or is larger than a record may be; the message says why."""

    error_class = "unwritable"


class Oversize(ConduitError):
    """The values of several records have more bytes than one Arrow array holds; they must be cut into fewer."""


class Unavailable(ConduitError):
    """The destination as a whole failed in a way that may recover (SEMANTICS T6 *failed*)."""

    def __init__(self, message: str, *, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after, self.status = retry_after, status


class Refused(ConduitError):
    """The destination will not take this record, and a retry cannot improve it (SEMANTICS T6 *completed*)."""

    error_class = ""
    """Class of its dead letter, if the kind of error alone decides it."""

    def __init__(self, message: str, *, status: int | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.row = row
        """Number of the row at fault among those of a write, if the destination knows it."""


class DoesNotFit(Refused):
    """The columns of a table do not take this record as it is; once the table is changed, its dead letter can be sent
    again (docs/schema-evolution.md)."""

    error_class = "schema"


class Terminated(BaseException):
    """SIGTERM asked this process to end. A BaseException, so that handlers of ordinary errors do not stop it.

    `busy`: executors may still be at work for this process.
    """

    def __init__(self, *, busy: bool) -> None:
        super().__init__("asked to end by SIGTERM")
        self.busy = busy
