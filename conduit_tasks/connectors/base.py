"""What a connector is: the contracts of sources and destinations.

A connector module offers `SOURCE` and/or `DESTINATION`: classes with a `Spec`. Built with flat string
settings (as in the file); the constructor checks them all and raises `ConfigError` naming the option.
Both are picklable before `open`: plan and acks run in the driver or in Airflow, reads and writes in executors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from conduit_tasks.delivery.handlers import StateChange

Token = Any
"""A JSON value the source understands: a byte offset, a Kafka offset, a timestamp."""
Position = dict[str, Token]
"""How far a source is: part (a file, a topic partition, "") → token; a part that is missing was never read."""


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
    """What Conduit's own connector calls it, which is taken as well."""
    example: str = "x"
    """A value that is right: where that of a required option is wrong, the others are checked beside it."""

    @property
    def stand_in(self) -> str:
        return self.choices[0] if self.choices else self.example


@dataclass(frozen=True)
class Spec:
    """What a plugin is called and takes; the pages of `conduit connectors describe` come from it.

    An option named `cloudevents.*` or ending in `.*` takes any suffix.
    """

    name: str
    summary: str
    options: tuple[Option, ...] = ()

    def check(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings with defaults. Raises ConfigError on an unknown (nearest is named), missing or bad option."""
        from conduit_tasks.connectors.options import check

        return check(self, settings)


@dataclass(frozen=True)
class Slice:
    """A piece of a source read as one unit: advances `part` from `start` to `end`.

    Slices of one partition are in order. `records` is the exact number where the source knows it before
    reading (file), else None. `hint` is anything the source wants back at read (JSON).
    """

    part: str
    partition: str
    start: Token
    end: Token
    records: int | None = None
    bytes: int | None = None
    hint: Any = None
    open: bool = False
    """Its `end` is None until it was read: what reading finds is fixed by the first stage that lands (invariant 3).
    Each is read by a task of its own."""


class Receipts(Protocol):
    """What a source keeps beside the micro-batch until its ack: the handles of a queue's messages."""

    def put(self, data: bytes) -> str:
        """Durable on return; the name to find it by."""
        ...

    def get(self, name: str) -> bytes:
        """Raises SpoolError where it is gone."""
        ...


@dataclass(frozen=True)
class Limit:
    """What one micro-batch may take from one source; None = no bound."""

    records: int | None = None
    bytes: int | None = None
    slices: int | None = None
    """More of them are thrown away: a source that spares itself the work may stop there."""


class Owner:
    """What a connector has in its system under a name that must be its own."""

    def owned(self) -> Collection[str]:
        """Names, in words and without secrets, that no other connector may use: two that share a consumer group or a
        replication slot take each other's records. Asked of an instance that is not opened."""
        return ()


class Listener:
    """What a connector and a processor have in common: they may register handlers of state changes (SEMANTICS C7)."""

    def handlers(self) -> Mapping[str, Callable[[list[StateChange]], Any]]:
        """State (`acked`, `nacked`) → function, beside those that the pipeline file names (docs/handlers.md).

        A destination and its processors are told of changes there, all others of messages as a whole: a source and its
        processors of that source's, pipeline processors of all. Asked of an instance that is made for it, and not
        opened; the functions run where the changes are told, in any process.
        """
        return {}


class Source(Listener, Owner):
    """A positional source: reading a slice again gives the same records (invariant 3). One that cannot promise it plans
    open slices, and says after reading each where it ended.

    Raises SourceError (names the part, says what to do) where a slice cannot be planned or read, and
    RecordError never: an undecodable record is yielded raw with metadata `conduit.error` and nacked alone.
    """

    spec: ClassVar[Spec]
    ack_on: ClassVar[Literal["delivered", "stored"]] = "delivered"
    """When it is acked unless the file says otherwise (SEMANTICS T2). *stored*: its producer waits for the ack, or what
    it keeps until then grows without a bound."""
    read_again: ClassVar[bool] = True
    """Whether what was acked is still there to be read; a replay then asks the source, otherwise the spool."""
    local: ClassVar[bool] = False
    """Whether `plan` and `read` look at this machine only and change nothing: `conduit validate` then tries conditions
    and templates on its first records."""
    in_driver: ClassVar[bool] = False
    """Whether it reads through the driver's Spark session; it is then read there, not in an executor."""
    settles: ClassVar[bool] = False
    """Whether an ack is given for each micro-batch apart, in order: a queue's, whose position holds what to delete."""
    comes_again: ClassVar[float] = 3_600.0
    """Of one that settles: seconds after its ack in which a message may come all the same."""
    stays_open: ClassVar[bool] = False
    """Whether one object may be asked for plan after plan, and told ack after ack: connecting again would cost more
    than asking, and what it has learnt of its system is asked anew each time."""
    parts_go: ClassVar[bool] = False
    """Whether parts come and go, so that it has `gone`."""
    forget_after: float | None = None
    """Seconds after which the position of a part that is gone is forgotten; None: never."""
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of the connector it is there; set by who builds it to work, not to check settings."""
    receipts: Receipts
    """Set for `plan` (there to be read), for `read` of an open slice, for `hold` and for `ack`."""
    unsettled: Sequence[Position] = ()
    """Set for `plan` and `read` of a source that settles: the ends of micro-batches whose messages may come again,
    because they are not acked, or were sealed not long ago."""
    skipped: int = 0
    """Slices that `read` has passed over, in whole or in part, because what they hold is gone (`missing: skip`)."""
    hold_every: float = 0.0
    """Seconds after which `hold` is due again; 0: nothing has to be held."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        """Slices past `position`, in reading order, within `limit`; [] where there is nothing. No Spark.

        Raises PartLeftOut, with all other slices, where one part cannot be read and others can; SourceError where
        nothing can.
        """
        raise NotImplementedError

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        """Exactly the records of the slice, in order, as READ_SCHEMA batches. Runs in an executor."""
        raise NotImplementedError

    def reached(self, slice: Slice) -> Token:
        """Where an open slice ended; asked once, of who read it to its end. What it names must be durable."""
        raise NotImplementedError

    def before(self, position: bytes, at: Position) -> bool | None:
        """Whether a record, by its position, lies before where the source stands at `at`. None where it cannot say: a
        replay of what is missing then refuses."""
        return None

    def history(self, since: int | None) -> Position:
        """Has `plan` read for a replay from now on: whatever is acked, and changing nothing anywhere. Where that
        begins: before every record whose own time is `since` (µs since the epoch; None: any) or later."""
        return {}

    def metadata(self, slice: Slice) -> dict[str, str]:
        """Metadata that every record of the slice shares."""
        return {}

    def news(self, position: Position) -> bool:
        """Whether there is something past `position`: a look that is cheap and changes nothing, asked every few seconds
        of one object (by one thread at a time) where the pipeline is woken by this source. Raises as `plan` does."""
        raise NotImplementedError

    @classmethod
    def watchable(cls) -> bool:
        """Whether it has `news`."""
        return cls.news is not Source.news

    def gone(self, position: Position) -> Collection[str]:
        """Parts of the position that are nowhere any more, as far as can be told."""
        return ()

    def hold(self, positions: Sequence[Position], spare: float) -> None:
        """Keeps what these slices received, which is not acked, from being handed out to others until the next call, or
        for `spare` seconds more where nobody runs meanwhile. Raises Unavailable."""

    def ack(self, position: Position) -> None:
        """Told how far everything is confirmed; the same position may be given again after a crash (C12)."""

    def teardown(self) -> list[str]:
        """Removes what it made for itself in its system, when it is not used any more; says what, [] for nothing."""
        return []

    def close(self) -> None:
        """Leaves nothing open."""


@dataclass(frozen=True)
class Outcome:
    """What became of one send (T6). *delivered*; *refused*: a retry cannot improve it; *failed*: may recover."""

    kind: Literal["delivered", "refused", "failed"]
    message: str = ""
    status: int | None = None
    retry_after: float | None = None


DELIVERED = Outcome("delivered")


class RecordDestination(Listener, Owner):
    """Record-wise: one outcome per record. `send` is called concurrently up to `max-unconfirmed`."""

    spec: ClassVar[Spec]
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of the connector it is there; set by who builds it to work, not to check settings."""
    effectively_once: ClassVar[bool] = False
    """Whether `guarantee: effectively-once` can be given (SEMANTICS B8): data and position in one step."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - the client keeps it per send
        """Connects; raises Unavailable."""

    async def send(self, record: Record) -> Outcome:
        """Sends one record once; never retries, never raises for what an Outcome can say."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leaves nothing open."""


@dataclass(frozen=True)
class RowNumbers:
    """The numbers of some rows in what a pipeline sends to a destination within an epoch: ascending, never given to
    another record. Rows of one position share a number, and are always written together."""

    pipeline: str
    destination: str
    epoch: int
    numbers: npt.NDArray[np.int64]

    def received(self, current: int) -> tuple[int, int]:
        """What a monotonic pipe's receiver (SEMANTICS O5) makes of them where `current` was the last number written
        (0: none): how many of the rows, from the first, are there already, and the last number with the others."""
        from conduit_tasks.pipes.monotonic import MonotonicReceiver

        receiver = MonotonicReceiver(first=current + 1, epoch=self.epoch)
        had = receiver.receive_all(self.numbers.tolist())
        return had, receiver.current or current


@dataclass(frozen=True)
class Rows:
    """Some rows for a batch-wise destination, in order, with what is needed to see them as records.

    `batch`: SPOOL_SCHEMA columns. `origins`: per slice number. `first`, `last`: seqs of the
    outermost rows. A destination that needs ids or whole records calls `records()`.
    """

    batch: pa.RecordBatch
    origins: Sequence[Any]
    micro_batch: int = 0
    first: int = 0
    last: int = 0
    numbers: RowNumbers | None = None
    """Where the pipe or the guarantee wants them, for a destination that `keeps_index`."""
    seal: int = 0
    """What sealed the micro-batch (microseconds): in another life of the pipeline the same number has another. 0 where
    the rows are not part of one: records that are redriven, or written outside of a pipeline."""
    epoch: int = 0
    """Above 0 where a confirmed part of the micro-batch is delivered again because somebody asked for it."""

    def records(self) -> list[Record]:
        from conduit_tasks.record.schema import to_records

        return to_records(self.batch, self.origins)


def _nobody_asks() -> None:
    """Outside of an engine there is no lease."""


class BatchDestination(Listener, Owner):
    """Batch-wise: `write` is all or nothing and durable when it returns; bisected on `Refused`.

    The state that `write` returns is stored with the confirmation, in one step. `open(state)` is called
    with the state last confirmed: first, and again after every failed write: the destination goes back to
    exactly that (a file is cut back), so that what was not confirmed leaves no trace.
    """

    spec: ClassVar[Spec]
    pipeline: str = ""
    connector: str = ""
    """Ids of the pipeline and of the connector it is there; set by who builds it to work, not to check settings."""
    effectively_once: ClassVar[bool] = False
    """As above; also where `open(state)` brings back exactly what was confirmed (a file is cut back)."""
    in_driver: ClassVar[bool] = False
    """Whether it writes through the driver's Spark session; it then runs there, not in an executor."""
    keeps_index: ClassVar[bool] = False
    """Whether it stores the last of `Rows.numbers` with the rows in one transaction, and leaves out what it has."""
    forks: ClassVar[bool] = True
    """Whether it works in a fork of a process that it has worked in; otherwise a record that may kill its worker is
    delivered in a new process."""
    chunk: ClassVar[int] = 50_000
    """Rows per write."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = self.spec.check(settings)
        self.limit = 600.0
        """Seconds that one write may take (`delivery.timeout`), set by the engine: a destination has its client give
        up before, as its process is ended then."""
        self.still_ours: Callable[[], None] = _nobody_asks
        """Set by the engine; raises Fenced where the lease was lost. A destination that goes back to its state asks
        once nobody else can write and before it changes anything: the state may be an old one by then (invariant 4)."""

    @classmethod
    def idempotent(cls, settings: Mapping[str, str]) -> bool:
        """Whether rows that are written again, after a crash between write and confirmation, change nothing."""
        return False

    def open(self, state: dict[str, Any] | None) -> None:
        """See above; raises Unavailable (may recover) or ConfigError."""

    def write(self, rows: Rows) -> dict[str, Any] | None:
        """Raises Refused (the fault is in the rows) or Unavailable (it is not)."""
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
    """Why its module cannot be loaded; then neither class is there."""
    aliases: list[str] = field(default_factory=list)
