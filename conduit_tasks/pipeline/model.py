"""The pipeline file as pydantic models: Conduit's keys (version 2.2) and ours, as written, with what each means, its
default and its bounds.

The docstring of a key is its meaning; the JSON Schema for editors (`conduit schema`) is made from these docstrings.
Once read, durations are seconds and sizes bytes. Unknown keys are errors, because a misspelt guarantee is no guarantee.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from conduit_tasks.pipeline.values import (
    Count,
    Duration,
    Id,
    Per,
    Positive,
    Rate,
    Settings,
    Size,
    Tasks,
    as_list,
    as_words,
)
from conduit_tasks.pipes import registry as pipes
from conduit_tasks.record.searchable import KEY

PIPES = (
    "resend",
    "resend-multi",
    "stream",
    "sequential",
    "monotonic",
    "monotonic-relaxed",
    "continuous",
    "continuous-relaxed",
)
"""Names of the delivery pipes (SEMANTICS O1–O6r)."""


class Keys(BaseModel):
    """Base of all models: keys are spelt with dashes; unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class ProcessorKeys(Keys):
    """A processor; it sees the records of its section only (SEMANTICS C2)."""

    id: Id
    """Unique within its section."""
    plugin: str
    """Name of the processor, with or without `builtin:`."""
    condition: str | None = None
    """Go template; the processor runs on records for which it gives `true`."""
    settings: Settings = Field(default_factory=dict)
    """The plugin's options."""
    workers: Count = 1
    """Number of workers, as in Conduit; order is kept whatever the number."""


class DeadLetterKeys(Keys):
    """Destination of nacked records, and the number of nacks that is tolerated (SEMANTICS C5, C6)."""

    plugin: str | None = None
    """A destination's plugin; absent = our own store, `builtin:log` = drop with a warning."""
    settings: Settings = Field(default_factory=dict)
    """The plugin's options."""
    window_size: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Number of last outcomes in the window, 10,000 at most; 0 = no limit of nacks."""
    window_nack_threshold: Count = 0
    """Number of nacks that the window may hold; one more stops the pipeline."""
    processors: Annotated[list[ProcessorKeys], BeforeValidator(as_list)] = Field(default_factory=list)
    """Processors of dead letters; one that fails leaves the letter as it was."""


class TriggerKeys(Keys):
    """Selection of the records that a destination gets (SEMANTICS T3)."""

    filters: Annotated[list[dict[str, Any]], BeforeValidator(as_list)] = Field(default_factory=list)
    """CloudEvents subscriptions filters: exact, prefix, suffix, all, any, not, sql; all of the list must match."""


class BreakerKeys(Keys):
    """A circuit breaker: after failures in a row nothing is sent for a pause, and then one record is tried."""

    failures: Annotated[int, Field(gt=0, le=1_000_000)] = 5
    """Sends that fail in a row, over micro-batches and runs; one that goes well, or is refused, begins again."""
    pause: Annotated[Duration, Field(gt=0)] = 10.0
    """The first pause; each further one in a row is twice as long. A longer `Retry-After` counts instead."""
    pause_max: Annotated[Duration, Field(gt=0)] = 300.0
    """The longest pause."""


class DeliveryKeys(Keys):
    """Options of the delivery to a destination (SEMANTICS O, T9)."""

    pipe: Literal[PIPES] = "stream"  # type: ignore[valid-type]
    """The delivery discipline."""
    max_unconfirmed: Annotated[int, Field(gt=0, le=1_024)] = 1
    """Sends in flight, per destination (with `parallelism`: per task), 1,024 at most; 64 with `pipe: resend-multi`."""
    order_by: Literal["partition", "key", "none"] = "partition"
    """Scope in which order is kept: all records of a source partition, the records of one key (64 lanes), or none;
    `none` with `pipe: resend-multi`."""
    retry: Count = 0
    """Retries of a failed send within one attempt of the task; 5 with `pipe: resend` and `resend-multi`."""
    backoff_policy: Literal["constant", "linear", "exponential"] = "exponential"
    """Growth of the delays between retries."""
    backoff_delay: Duration = 0.2
    """Delay before the first retry."""
    timeout: Duration = 10.0
    """Timeout of one send: it has failed if it is not confirmed in this time. Destinations that write in bulk: timeout
    of one write, at least 30s, and 10m if it is not set."""
    retry_after_max: Duration = 60.0
    """The longest `Retry-After` that is honoured."""
    on_unavailable: Literal["wait", "dead-letter"] = "wait"
    """Treatment of records while the destination is down: the cursor waits, or they become dead letters (T7)."""
    refused: Literal["nack", "complete"] = "nack"
    """Meaning of an answer that a retry cannot improve (400, 401 …): a nack, or delivered (T6 to the letter)."""
    rate_limit: Rate | None = None
    """Records per second."""
    guarantee: Literal["at-most-once", "at-least-once", "effectively-once"] = "at-least-once"
    """Number of times that a record may arrive (SEMANTICS B8)."""
    max_redeliveries: Positive = 3
    """Attempts without progress before the micro-batch is searched for the record at fault (C10)."""
    park_keys: bool = False
    """Whether later records of a key are parked after a dead letter of that key (X4)."""
    breaker: BreakerKeys | None = None
    """Circuit breaker of the destination; absent = none."""
    parallelism: Tasks = 1
    """Spark tasks that deliver one micro-batch to the destination side by side, 64 at most. Each sends the records of
    its own keys, partitions, or stretches (`order-by`). `auto`: as many as Spark's default parallelism, 16 at most, if
    the order and the destination allow several and the micro-batch is not small; 1 for a `standalone` connector."""

    def effective(self) -> DeliveryKeys:
        """Returns a copy with the defaults of the pipe for options that the file does not set."""
        said = {n: value for n, value in pipes.PIPES[self.pipe].defaults.items() if n not in self.model_fields_set}
        if self.guarantee == "at-most-once":
            said.pop("retry", None)
        return self.model_copy(update=said)


class StepKeys(Keys):
    """A step after a delivery: called for each micro-batch that the destination has confirmed, in order, at least once;
    exactly one of the three."""

    dag: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=250)] | None = None
    """A DAG to trigger, with the micro-batch as its conf."""
    asset: str | None = None
    """An Airflow asset, a URI or a name: each micro-batch is an event of it, which says which one."""
    call: str | None = None
    """A function, `module:function`, that gets the micro-batch."""


class ConnectorKeys(Keys):
    """A source or a destination."""

    id: Id
    """Unique within the pipeline."""
    type: Literal["source", "destination"]
    """Side of the pipeline."""
    plugin: str
    """Name of the connector, with or without `builtin:`."""
    name: str = ""
    """For people."""
    settings: Settings = Field(default_factory=dict)
    """The plugin's options; maps nest names (`a: {b: 1}` is `a.b`)."""
    processors: Annotated[list[ProcessorKeys], BeforeValidator(as_list)] = Field(default_factory=list)
    """Processors that see the records of this connector only (SEMANTICS C2)."""
    ack_on: Literal["delivered", "stored"] | None = None
    """Sources: acked when everything is delivered, or when the micro-batch is sealed; absent = delivered, except for
    `gateway` and `postgres`."""
    durability: Literal["redis", "spool"] | None = None
    """Source `gateway`: where an event is stored before its producer is answered; absent = redis."""
    trigger: TriggerKeys | None = None
    """Destinations only: filters of the records to deliver; absent = all."""
    delivery: DeliveryKeys | None = None
    """Destinations only: options of the delivery."""
    dead_letter_queue: DeadLetterKeys | None = None
    """Destinations only; absent = the pipeline's."""
    asset: Annotated[list[str], BeforeValidator(as_words)] | None = None
    """Airflow assets (a URI or a name, or a list): of a destination those that it writes, absent = made from its
    settings, `[]` = none; of a source those that it reads, absent = none."""
    on_delivered: StepKeys | None = None
    """Destinations only: a step after each micro-batch that is delivered."""
    deadline: Annotated[Duration, Field(gt=0)] | None = None
    """Destinations only: age of the oldest unconfirmed record from which on the pipeline's `alerts` are called."""


class MicroBatchKeys(Keys):
    """Limits of the records that one run reads; the sources share them in turn."""

    max_records: Positive = 500_000
    """Records of all sources together."""
    max_bytes: Size | None = None
    """Bytes as the sources count them; absent = no limit."""


class LagBudgetKeys(Keys):
    """Lag by which the slowest destination may be behind reading; absent = one micro-batch (SEMANTICS C13, X1)."""

    records: Positive | None = None
    """Records that are read and not confirmed."""
    bytes: Size | None = None
    """Size of these records in the spool."""
    age: Duration | None = None
    """Time since the oldest of these records was sealed."""


class SpoolKeys(Keys):
    """Storage of micro-batches."""

    path: str | None = None
    """A folder, or an address at which Arrow stores files: `s3://…`, `gs://…`, `hdfs://…`, `fsspec+…://…` (of a package
    for fsspec); absent = the installation's."""
    retention: Duration | None = None
    """Time for which a delivered micro-batch is kept, for replay; an hour at least with an `sqs` source, whose messages
    may come again."""


class HandlerKeys(Keys):
    """A function that is called with state changes before they are confirmed (SEMANTICS C7)."""

    on: Literal["acked", "nacked"]
    """State change that calls the function."""
    of: Literal["destination", "message"] = "destination"
    """State of a record at each destination, or of the message as a whole: acked once all destinations have it, nacked
    once one nacked it."""
    call: str
    """`module:function`."""


class AlertKeys(Keys):
    """A notifier that is called once when a destination misses its `deadline` or a rule here is broken, and once when
    that is over; and once for each issue that is new, or open again, if it asks for them."""

    notifier: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
    """A notifier of Airflow's: `package.module.Class`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor; templates see `conduit` (`conduit.message`, `.destination`, `.age`, …)."""
    lag: Duration | None = None
    """Rule: no destination's oldest unconfirmed record is older than this, whatever its `deadline`."""
    dead_letters: Per | None = None
    """Rule: fewer dead letters than this in such a time, such as `5/h`; at most 14 days."""
    no_data: Duration | None = None
    """Rule: something was read within this time; at most 14 days."""
    issues: bool = False
    """Whether it is told of issues: failures of one cause, of records or of tasks."""


class RecoveryKeys(Keys):
    """Retries after a failure that may be temporary (a lost worker, a full disk, a source that cannot be read)."""

    min_delay: Duration = 1.0
    """Delay before the first retry."""
    max_delay: Duration = 600.0
    """The longest delay between two attempts."""
    backoff_factor: Annotated[float, Field(ge=1)] = 2.0
    """Factor by which each delay exceeds the one before."""
    max_retries: Annotated[int, Field(ge=-1)] = 20
    """Failures without progress in between; one more and the pipeline is degraded. -1 = no limit."""


class WakeKeys(Keys):
    """Looks at sources between the times of the schedule; a run starts if there is something new."""

    sources: list[Id] = Field(default_factory=list)
    """Ids of the sources that are looked at; none = all that can be. A plain list of ids is the same."""
    look: Duration = 2.0
    """Time between two looks."""
    pause: Duration = 10.0
    """Least time between two wake-ups; doubled, up to five minutes, while they achieve nothing."""

    @model_validator(mode="before")
    @classmethod
    def _ids_alone(cls, value: Any) -> Any:
        return {"sources": value} if isinstance(value, list) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "array", "items": {"type": "string"}}, handler(core)]}


class PipelineKeys(Keys):
    """One pipeline: sources, processors, destinations (SEMANTICS C1)."""

    id: Id
    """Unique in the whole folder of pipeline files."""
    status: Literal["running", "stopped"] = "running"
    """`stopped`: its DAG begins paused."""
    name: str = ""
    """For people; absent = the id."""
    description: str = ""
    """For people."""
    connectors: Annotated[list[ConnectorKeys], BeforeValidator(as_list)] = Field(default_factory=list, max_length=1_000)
    """At least one source and one destination (SEMANTICS C1)."""
    processors: Annotated[list[ProcessorKeys], BeforeValidator(as_list)] = Field(default_factory=list)
    """Processors that see all records, after the sources' own."""
    dead_letter_queue: DeadLetterKeys = DeadLetterKeys()
    """Dead-letter queue of every destination without its own, and of records that fail before the fan-out."""
    schedule: str = "30s"
    """Cron, an interval such as 30s, @continuous, or none: only others start it (`ConduitPipeline`, an API, `wake`)."""
    data_intervals: bool = False
    """Whether a scheduled run has the data interval from the scheduled time before to its own; otherwise only its own
    time."""
    wake: WakeKeys | None = None
    """Sources whose new data starts a run before its scheduled time."""
    micro_batch: MicroBatchKeys = MicroBatchKeys()
    lag_budget: LagBudgetKeys | None = None
    isolate: bool = False
    """Whether the other destinations go on, within `lag-budget`, while one is failing or slow (SEMANTICS X1)."""
    event_time: str | None = None
    """Field by which a replay's interval selects records; absent = the source's own time."""
    mask: Annotated[list[str], BeforeValidator(as_words)] = Field(default_factory=list, max_length=1_000)
    """Fields, such as `.Payload.After.card`, that `conduit records` and the pages *Records* and *Try* show as `***`,
    beside those whose name says that they are secret. They are read, stored and delivered as they are."""
    index: Annotated[list[str], BeforeValidator(as_words)] = Field(default_factory=lambda: [KEY], max_length=8)
    """Fields, such as `.Payload.After.order_id`, by which `conduit records history` and the page of a record find what
    the spool holds, without reading all of it; `.Key` is the record's key. At most eight; `[]` keeps no index. None
    that is named secret or lies under `mask`: a guess would tell what it holds. Costs about 8 bytes of the spool per
    record and field."""
    drain_limit: Duration | None = None
    """The longest time that a run lasts before the next one goes on; absent = 1h, 10m under @continuous."""
    replay_interval: str = "@daily"
    """The data interval of the replay DAG: cron, a preset such as @daily, or a duration."""
    spool: SpoolKeys = SpoolKeys()
    handlers: Annotated[list[HandlerKeys], BeforeValidator(as_list)] = Field(default_factory=list)
    alerts: Annotated[list[AlertKeys], BeforeValidator(as_list)] = Field(default_factory=list)
    """Absent = those of the Airflow Variable `conduit_alerts`."""
    error_recovery: RecoveryKeys = RecoveryKeys()
