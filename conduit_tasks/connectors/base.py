"""Contracts of connectors: what a source, a record-wise and a batch-wise destination promise, with `Spec`, `Option`,
`Slice` and `Outcome`.

A connector module offers `SOURCE`, `DESTINATION` or both: classes with a `Spec`. They are built with flat string
settings (as in the file); the constructor checks them all and raises `ConfigError` naming the option.
Both can be pickled before `open`: plan and acks run in the driver or in Airflow, reads and writes in executors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName  # noqa: F401 - for connectors of other packages, too
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.connection import Takes
    from conduit_tasks.delivery.handlers import StateChange
    from conduit_tasks.spool.told import Told

Token = Any
"""A JSON value the source understands: a byte offset, a Kafka offset, a timestamp."""
Position = dict[str, Token]
"""Position of a source: part (a file, a topic partition, "") → token; a part that is missing was never read."""


@dataclass(frozen=True)
class Option:
    """One setting. `default` None and `required` False: absent is allowed. `secret` values are never printed."""

    name: str
    help: str
    default: str | None = None
    required: bool = False
    secret: bool = False
    choices: tuple[str, ...] = ()
    conduit: str = ""
    """Name of the option in Conduit's own connector, which is accepted as well."""
    example: str = ""
    """A valid value, which stands in for a wrong one while the other options are checked; needed where another value
    than "x" is valid, and for an option that only some need."""

    @property
    def stand_in(self) -> str:
        return self.choices[0] if self.choices else self.example or "x"


@dataclass(frozen=True)
class Spec:
    """Name and options of a plugin; the pages of `conduit connectors describe` are made from it.

    An option that ends in `.*` takes any suffix; a `*` elsewhere in its name stands for any text.
    """

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    connection: Takes | None = None
    """Airflow connections that it takes (setting `connection`); the connector itself gets what they give."""

    def check(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Returns the settings with defaults. Raises ConfigError on an unknown option (the nearest is named), a missing
        or a bad one."""
        from conduit_tasks.connectors.options import check

        return check(self, settings)


@dataclass(frozen=True)
class Slice:
    """A piece of a source that is read as one unit: advances `part` from `start` to `end`.

    Slices of one partition are in order. `records` is the exact number if the source knows it before
    reading (file), else None. `hint` is anything that the source needs again at read (JSON).
    """

    part: str
    partition: str
    start: Token
    end: Token
    records: int | None = None
    bytes: int | None = None
    hint: Any = None
    open: bool = False
    """Whether `end` is None until the slice was read: the first stage that lands fixes its records (invariant 3).
    Each open slice is read by a task of its own."""


@dataclass(frozen=True)
class Limit:
    """Limits of what one micro-batch takes from one source; None = no bound."""

    records: int | None = None
    bytes: int | None = None
    slices: int | None = None
    """Further slices are thrown away, so a source may stop planning at this number."""


class Owner:
    """Names that a connector uses in its system and that no other connector may use; and what it was told of its
    life."""

    told: Told | None = None
    """Its lifecycle as it was told, for one that is told (`standalone`); set on an instance that is to run."""
    for_letters: bool = False
    """Whether it takes a pipeline's dead letters: then it is told nothing of its life, as in Conduit."""

    def owned(self) -> Collection[str]:
        """Returns the names, in words and without secrets: two connectors that share a consumer group or a replication
        slot take each other's records. Called on an instance that is not opened."""
        return ()

    @classmethod
    def unkept(cls, settings: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Returns option → what of its value is not done, and what to do about it: `conduit validate` warns of it."""
        return {}


class Listener:
    """Base of connectors and processors: both may register handlers of state changes (SEMANTICS C7)."""

    def handlers(self) -> Mapping[str, Callable[[list[StateChange]], Any]]:
        """Returns state (`acked`, `nacked`) → function, in addition to those of the pipeline file (docs/handlers.md).

        The handlers of a destination and of its processors receive changes at that destination. All others receive
        changes of whole messages: a source and its processors for messages of that source, pipeline processors for
        all. Called on an instance that is made for it, and not opened; the functions run in any process that reports
        changes.
        """
        return {}


class Source(Listener, Owner):
    """A positional source: reading a slice again gives the same records (invariant 3). A source that cannot promise it
    plans open slices, and returns the end of each after reading it. What some sources can do besides is in
    `capabilities`.

    Raises SourceError (names the part, says what to do) if a slice cannot be planned or read. Never raises
    RecordError: an undecodable record is yielded raw with metadata `conduit.error` and nacked alone.
    """

    spec: ClassVar[Spec]
    ack_on: ClassVar[Literal["delivered", "stored"]] = "delivered"
    """Event after which it is acked, unless the pipeline file says otherwise (SEMANTICS T2). *stored*: its producer
    waits for the ack, or its system keeps data until then, without a bound."""
    local: ClassVar[bool] = False
    """Whether `plan` and `read` use this machine only and change nothing: `conduit validate` then tries conditions and
    templates on its first records."""
    in_driver: ClassVar[bool] = False
    """Whether it reads through the driver's Spark session; it is then read there, not in an executor."""
    stays_open: ClassVar[bool] = False
    """Whether one object may serve many `plan` and `ack` calls, because connecting costs more than the calls. It then
    queries the state of its system again at each call."""
    parts_go: ClassVar[bool] = False
    """Whether parts come and go; the source then has `gone`."""
    forget_after: float | None = None
    """Seconds after which the position of a part that is gone is forgotten; None: never."""
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of this connector in it; set on an instance that is to run, not on one that only checks
    settings."""
    skipped: int = 0
    """Slices that `read` has skipped, in whole or in part, because their data is gone (`missing: skip`)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Returns the slices past `position`, in reading order, within `limit`; [] if there are none. No Spark.

        Raises PartLeftOut, with all other slices, if a part cannot be read and others can; SourceError if none can.
        """
        raise NotImplementedError

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        """Yields exactly the records of the slice, in order, as READ_SCHEMA batches. Runs in an executor."""
        raise NotImplementedError

    def reached(self, slice: Slice) -> Token:
        """Returns the end of an open slice. Called once, on the instance that read the slice to its end. Data that the
        token refers to must be durable."""
        raise NotImplementedError

    def metadata(self, slice: Slice) -> dict[str, str]:
        """Returns the metadata that every record of the slice shares."""
        return {}

    def gone(self, position: Position) -> Collection[str]:
        """Returns the parts of the position that no longer exist, as far as can be told."""
        return ()

    def ack(self, position: Position) -> None:
        """Acks everything up to `position`, all of it confirmed; the same position may come again after a crash
        (C12)."""

    def teardown(self) -> list[str]:
        """Removes what the source created for itself in its system, when it is not used any more. Returns what was
        removed, in words; [] for nothing."""
        return []

    def close(self) -> None:
        """Leaves nothing open."""


@dataclass(frozen=True)
class Outcome:
    """Result of one send (T6). *delivered*; *refused*: a retry cannot help; *failed*: may recover."""

    kind: Literal["delivered", "refused", "failed"]
    message: str = ""
    status: int | None = None
    retry_after: float | None = None


DELIVERED = Outcome("delivered")


class _Writers:
    """How many may write at a time, for either kind of destination."""

    once_by_shards: ClassVar[bool] = False
    """Whether several tasks give effectively-once (ADR 48), which a batch-wise destination may do: of each `shard` it
    stores the last of `Rows.numbers` apart, in one transaction with the rows, and it has `left_by`."""

    @classmethod
    def several_if(cls, settings: Mapping[str, str]) -> str:
        """Returns what must be so that several processes may write, if we cannot know that; "" if we know that they
        may. Then a number that the file names counts, with a warning, and `auto` is one."""
        return ""


class RecordDestination(_Writers, Listener, Owner):
    """A record-wise destination: one outcome per record. `send` is called concurrently up to `max-unconfirmed`."""

    spec: ClassVar[Spec]
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of this connector in it; set on an instance that is to run, not on one that only checks
    settings."""
    effectively_once: ClassVar[bool] = False
    """Whether `guarantee: effectively-once` can be given (SEMANTICS B8): data and position in one step."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        """Returns why one object alone may send at a time; "" if several processes may (`delivery.parallelism`)."""
        return ""

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        """Returns whether several micro-batches may be under way at once if `order-by: none` is asked for (ADR 41)."""
        return True

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - the client keeps it per send
        """Connects; raises Unavailable."""

    async def send(self, record: Record) -> Outcome:
        """Sends one record once; never retries, never raises an error that an Outcome can express."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leaves nothing open."""


def _nobody_asks() -> None:
    """Raises nothing: outside of an engine there is no lease."""


class BatchDestination(_Writers, Listener, Owner):
    """A batch-wise destination: `write` is all or nothing and durable when it returns; bisected on `Refused`.

    The state that `write` returns is stored with the confirmation, in one step. `open(state)` is called
    with the state last confirmed, at first and again after every failed write. The destination then goes back to
    exactly that state (a file is cut back), so that unconfirmed rows leave no trace.
    """

    spec: ClassVar[Spec]
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of this connector in it; set on an instance that is to run, not on one that only checks
    settings."""
    effectively_once: ClassVar[bool] = False
    """As for RecordDestination; also if `open(state)` restores exactly what was confirmed (a file is cut back)."""
    in_driver: ClassVar[bool] = False
    """Whether it writes through the driver's Spark session; it then runs there, not in an executor."""
    keeps_index: ClassVar[bool] = False
    """Whether it stores the last of `Rows.numbers` with the rows in one transaction, and skips rows that it has."""
    forks: ClassVar[bool] = True
    """Whether it works in a fork of a process in which it was used; otherwise a record that may kill its worker is
    delivered in a new process."""
    chunk: ClassVar[int] = 50_000
    """Rows per write."""
    tidies: bool = False
    """Whether what an earlier attempt wrote and nobody confirmed is removed by `tidy`, not by `open(state)` alone."""
    quarantine: bool = False
    """Whether a record that does not fit the table (DoesNotFit) is set aside: a dead letter that the nack window does
    not count (ADR 36)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)
        self.limit = 600.0
        """Seconds that one write may take (`delivery.timeout`), set by the engine. The destination has its client give
        up earlier, as its process is ended at that time."""
        self.attempts = 1
        """Attempts at a record (`delivery.retry`), set by the engine, for a destination that has an outcome per record:
        it refuses a record when that has failed so often, and until then is Unavailable."""
        self.shard: ShardName | None = None
        """The shard of which all rows are, set by the engine if several tasks deliver the micro-batch. What an earlier
        attempt at it wrote and `Rows.pending` covers is the destination's to remove; so is what was written of the same
        micro-batch by a task that is not of this division: Redis has forgotten it."""
        self.still_ours: Callable[[], None] = _nobody_asks
        """Check of the lease, set by the engine; raises Fenced if the lease was lost. A destination that goes back to
        its state calls it once nobody else can write, before it changes anything: the state may be outdated by then
        (invariant 4)."""

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        """Returns whether rows that are written again, after a crash between write and confirmation, change nothing."""
        return False

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        """Returns why one object alone may write at a time; "" if several processes may (`delivery.parallelism`).

        With a `shard` it then keeps no state (`write` returns None), and each write leaves those of other shards alone.
        """
        return "the connector writes in one place, one write after the other"

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        """Returns whether several micro-batches may be under way at once if `order-by: none` is asked for (ADR 41).
        Not if what was written is told apart by the name of its `shard`, nor if a row replaces an earlier one: an
        earlier micro-batch would replace a row of a later one for good."""
        return False

    def open(self, state: dict[str, Any] | None) -> None:
        """Goes back to `state` (see above). Raises Unavailable (may recover) or ConfigError."""

    def tidy(self, rows: Rows) -> None:
        """Removes what earlier attempts wrote of a micro-batch and `Rows.pending` covers; there are no rows here.
        Called after `open`, before anything of the micro-batch is confirmed: a record may be a dead letter afterwards,
        and what was written of it would stay. Raises Unavailable."""

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Writes the rows; returns the new state. Raises Refused (the fault is in the rows) or Unavailable (it is
        not)."""
        raise NotImplementedError

    def left_by(self, shards: Sequence[ShardName], sealed: str) -> list[int]:
        """Returns per shard of a micro-batch the last seq of it that is written, -1 if none is. Those that had begun to
        write them cannot write any more. Called before `open`, if one task finishes what several have begun; only where
        `once_by_shards`. `sealed`: as in Rows. Raises Unavailable, ConfigError, Fenced."""
        raise NotImplementedError

    def close(self) -> None:
        """Leaves nothing open."""


@dataclass
class Described:
    """A plugin's source and destination, as found by the registry."""

    source: type[Source] | None = None
    destination: type[RecordDestination] | type[BatchDestination] | None = None
    module: str = ""
    error: str = ""
    """Reason why its module cannot be loaded; then neither class is there."""
    aliases: list[str] = field(default_factory=list)
