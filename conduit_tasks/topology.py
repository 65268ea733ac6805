"""The graph of one pipeline as plain dataclasses, for the DAG factory and the Spark applications: names of nodes,
options with their defaults and limits, and the digest that tells versions of its file apart.

Built from a validated file by `conduit_tasks.pipeline.load`; every default is already applied, every
duration is in seconds, every size in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal


class Node(str):
    """Name of a node of a pipeline: `sources.<id>`, `processors`, `destinations.<id>` or `acks.<source>`; also `plan`,
    `seal` and the like, which hold a lease. A text, as it is stored and as Airflow's task group shows it."""

    __slots__ = ()

    @classmethod
    def source(cls, id: str) -> Node:
        """Returns the node that reads a source."""
        return cls(f"sources.{id}")

    @classmethod
    def destination(cls, id: str) -> Node:
        """Returns the node that delivers to a destination."""
        return cls(f"destinations.{id}")

    @classmethod
    def ack(cls, source: str) -> Node:
        """Returns the node that acks a source."""
        return cls(f"acks.{source}")

    @property
    def whole(self) -> Node:
        """The node itself, where this names a processor of it, as errors do (`processors/<id>`)."""
        return Node(self.partition("/")[0])

    @property
    def kind(self) -> str:
        """`sources`, `processors`, `destinations`, `acks`."""
        return self.partition(".")[0]

    @property
    def id(self) -> str:
        """Id of the connector; empty for nodes of the whole pipeline."""
        return self.partition(".")[2]


LETTERS_TIMEOUT = 60.0
"""Seconds for one write of dead letters to a destination."""
INDEX_PIPES = frozenset({"monotonic", "monotonic-relaxed", "continuous", "continuous-relaxed"})
"""Pipes whose receiver keeps an index: records travel with a number (SEMANTICS O5–O6r)."""


@dataclass(frozen=True)
class Processor:
    """One processor of a section; `plugin` is without `builtin:`; `settings` is flat, strings only."""

    id: str
    plugin: str
    settings: Mapping[str, str] = field(default_factory=dict)
    condition: str | None = None
    workers: int = 1
    section: str = field(default="", compare=False)
    """Name of the section it belongs to: another section may use the same id."""


@dataclass(frozen=True)
class Source:
    """A source connector and the processors that see only its records (C2)."""

    id: str
    plugin: str
    settings: Mapping[str, str] = field(default_factory=dict)
    processors: tuple[Processor, ...] = ()
    ack_on: Literal["delivered", "stored"] | None = None
    """Value of the file; None = default of the connector's class (`connectors.registry.ack_on`)."""
    durability: Literal["redis", "spool"] | None = None
    """The HTTP gateway: where an event is stored before its producer is answered; None = its default."""
    assets: tuple[str, ...] | None = None
    """Airflow assets that it reads, of the file."""

    @property
    def node(self) -> Node:
        return Node.source(self.id)


@dataclass(frozen=True)
class DeadLetterQueue:
    """Destination of nacked records, and the number of nacks that is tolerated (C5, C6).

    `plugin` None is the project's own store; "log" is *drop*. `window_size` 0 = no limit;
    defaults 1 and 0 = stop at the first nack.
    """

    plugin: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    window_size: int = 1
    window_nack_threshold: int = 0
    processors: tuple[Processor, ...] = ()
    """Processors of dead letters."""


LEAST_BULK_TIMEOUT = 30.0
"""Least timeout of a bulk write in seconds, however short the `timeout` of the file is."""

UNTOLD = 2_000
"""Limit of answered records of a record-wise destination that the broker was not told of yet; sending pauses there.

After a crash these records are sent again, like the unconfirmed ones (SEMANTICS C10).
"""


@dataclass(frozen=True)
class Breaker:
    """A circuit breaker: sends that fail in a row until it opens; seconds of its first and its longest pause."""

    failures: int = 5
    pause: float = 10.0
    pause_max: float = 300.0
    asked_max: float = 60.0
    """Seconds of `Retry-After` that count (`retry_after_max`)."""


AUTO_TASKS = 16
"""The most tasks of `parallelism: auto`: each of them has `max-unconfirmed` records on their way."""

TOGETHER = 16
"""Limit of micro-batches that a destination works on at once."""


@dataclass(frozen=True)
class Delivery:
    """Delivery options of a destination (T9 and docs/pipeline-file.md, "`delivery`"). Durations in seconds."""

    pipe: str = "stream"
    max_unconfirmed: int = 1
    order_by: Literal["partition", "key", "none"] = "partition"
    retry: int = 0
    backoff_policy: Literal["constant", "linear", "exponential"] = "exponential"
    backoff_delay: float = 0.2
    timeout: float = 10.0
    """Timeout of one send."""
    bulk_timeout: float = 600.0
    """Timeout of one bulk write: `timeout` if the file sets it, but not less than `LEAST_BULK_TIMEOUT`."""
    retry_after_max: float = 60.0
    on_unavailable: Literal["wait", "dead-letter"] = "wait"
    refused: Literal["nack", "complete"] = "nack"
    rate_limit: float | None = None
    """Records per second; None = no limit."""
    guarantee: Literal["at-most-once", "at-least-once", "effectively-once"] = "at-least-once"
    max_redeliveries: int = 3
    """Attempts without progress before the micro-batch is bisected for a record that kills its worker (C10)."""
    park_keys: bool = False
    breaker: Breaker | None = None
    parallelism: int | Literal["auto"] = 1
    """Tasks that deliver one micro-batch, at most; auto = Spark's default parallelism, up to `AUTO_TASKS`."""

    @property
    def most_tasks(self) -> int:
        """Tasks that deliver one micro-batch, at most."""
        return AUTO_TASKS if self.parallelism == "auto" else self.parallelism


@dataclass(frozen=True)
class Destination:
    """A destination connector: trigger filters, delivery options, its processors and its dead letters."""

    id: str
    plugin: str
    settings: Mapping[str, str] = field(default_factory=dict)
    processors: tuple[Processor, ...] = ()
    filters: tuple[Mapping[str, Any], ...] = ()
    """Trigger filters in the CloudEvents subscriptions form (`{"exact": {…}}` …); all must match; none = everything."""
    delivery: Delivery = Delivery()
    dead_letters: DeadLetterQueue = DeadLetterQueue()
    deadline: float | None = None
    """Age in seconds of the oldest unconfirmed record from which on the pipeline's alerts are called."""
    assets: tuple[str, ...] | None = None
    """Airflow assets that it writes, of the file; None = made from its settings (`pipeline.assets`)."""
    on_delivered: Mapping[str, str] = field(default_factory=dict)
    """The step after each micro-batch: {"dag": id}, {"asset": name} or {"call": "module:function"}; empty = none."""

    @property
    def node(self) -> Node:
        return Node.destination(self.id)


@dataclass(frozen=True)
class Limits:
    """A bound by records and bytes; None = no bound. `age` in seconds (lag budget only)."""

    records: int | None = None
    bytes: int | None = None
    age: float | None = None


@dataclass(frozen=True)
class Recovery:
    """Retries after a failure that may be temporary: the first and the longest delay in seconds, the factor by which
    each delay exceeds the one before, and the number of failures without progress that is tolerated before the pipeline
    is degraded, -1 = any."""

    min_delay: float = 1.0
    max_delay: float = 600.0
    backoff_factor: float = 2.0
    max_retries: int = 20


@dataclass(frozen=True)
class Wake:
    """Sources that are looked at between the times of the schedule (none = all that can be); seconds between two looks,
    and least seconds between two wake-ups."""

    sources: tuple[str, ...] = ()
    look: float = 2.0
    pause: float = 10.0


@dataclass(frozen=True)
class Pipeline:
    """One pipeline: sources → processors → destinations (C1)."""

    id: str
    sources: tuple[Source, ...]
    destinations: tuple[Destination, ...]
    processors: tuple[Processor, ...] = ()
    name: str = ""
    description: str = ""
    status: Literal["running", "stopped"] = "running"
    schedule: str = "30s"
    """Cron, an interval such as `30s`, or `@continuous`."""
    data_intervals: bool = False
    wake: Wake | None = None
    micro_batch: Limits = Limits(records=500_000)
    lag_budget: Limits | None = None
    """None = one micro-batch in flight."""
    isolate: bool = False
    event_time: str | None = None
    mask: tuple[str, ...] = ()
    """References to fields that people who look at records do not see."""
    index: tuple[str, ...] = ()
    """References to fields by which records of the spool are found."""
    drain_limit: float | None = None
    """The most seconds that a run lasts before the next one goes on; None = an hour, ten minutes under @continuous."""
    replay_interval: str = "@daily"
    spool_path: str | None = None
    spool_retention: float = 86_400.0
    dead_letters: DeadLetterQueue = DeadLetterQueue()
    handlers: tuple[Mapping[str, str], ...] = ()
    alerts: tuple[Mapping[str, Any], ...] = ()
    """Maps with `notifier` and its `arguments`."""
    recovery: Recovery = Recovery()
    file: str = ""
    """The file it was read from, for messages."""
    line: int = 0
    """Line in `file` where it begins."""

    def source(self, id: str) -> Source:
        return next(s for s in self.sources if s.id == id)

    def destination(self, id: str) -> Destination:
        return next(d for d in self.destinations if d.id == id)

    @property
    def final_nodes(self) -> tuple[str, ...]:
        """The nodes that write the final records of a micro-batch: `processors`, or every source."""
        return ("processors",) if self.processors else tuple(s.node for s in self.sources)

    def digest(self) -> str:
        """Returns 12 hex digits over everything that shapes delivery: the version in micro-batches and the ledger."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        import hashlib
        import json

        return hashlib.sha256(json.dumps(self, sort_keys=True, default=_shape).encode()).hexdigest()[:12]


_LEFT_OUT: Mapping[type, frozenset[str]] = {
    Pipeline: frozenset({"file", "line", "alerts", "mask", "index"}),
    Source: frozenset({"assets"}),
    Destination: frozenset({"deadline", "assets", "on_delivered"}),
    Delivery: frozenset({"bulk_timeout"}),
}
"""Class → what of it does not shape delivery."""


def _shape(value: Any) -> dict[str, Any]:
    """Returns a part of a pipeline, or a map, as what the digest is made over."""
    if isinstance(value, Mapping):
        return dict(value)
    left_out = _LEFT_OUT.get(type(value), frozenset())
    kept = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in left_out}
    if isinstance(value, Delivery) and value.parallelism == 1:
        # As in files of earlier versions.
        del kept["parallelism"]
    return kept
