"""The gateway's source: events that `conduit gateway` stored in Redis before it answered their producers (T2).

Events are planned by number, read without being removed, and removed when the source is acked. Their ids in the stream
are the positions; a producer's own CloudEvents attributes are metadata `cloudevents.*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Watchable
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import parse_rate

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.gateway.parse import Webhooks
    from conduit_tasks.gateway.store import Budget, IngestStore
    from conduit_tasks.pipes.base import Receiver

_ATTRIBUTE = "cloudevents."
SECRETS = ("env", "connection", "variable")


class GatewaySource(Watchable):
    """Token: the number of an event. One partition, in the order in which the events were stored."""

    spec = Spec(
        "gateway",
        "Takes events over HTTP (CloudEvents, webhooks) and answers when they are stored; served by `conduit gateway`.",
        (
            Option(
                "auth",
                "where the tokens are that a producer may show: comma-separated env:NAME, connection:ID (an Airflow "
                "connection's password), variable:KEY (an Airflow variable); or none",
                required=True,
                example="none",
            ),
            Option("max-request-size", "a larger body is answered with 413", default="1MiB"),
            Option("max-attributes-size", "an event with larger attributes is answered with 400", default="64KiB"),
            Option("backlog.records", "events that may wait for the pipeline; more are refused", default="1000000"),
            Option("backlog.bytes", "the same in bytes", default="256MiB"),
            Option("rate-limit", "events per second and gateway process, for example 1000/s"),
            Option("webhooks", "whether JSON that is no CloudEvent is taken", default="true"),
            Option("webhooks.id-header", "the header that holds a webhook's id"),
            Option("webhooks.type-header", "the header that holds a webhook's type"),
            Option("key", "the attribute that becomes the record's key", default="partitionkey"),
            Option(
                "pipe",
                "which events pass, by their sequence among those of the same source and pipe.key",
                choices=("monotonic", "monotonic-relaxed", "continuous", "continuous-relaxed"),
            ),
            Option("pipe.key", "the attribute beside source that has a sequence of its own", default="partitionkey"),
            Option("pipe.first", "the number to begin with; any: whichever comes first", default="1"),
            Option("pipe.wait", "how long an event may wait for a lower number", default="2s"),
            Option(
                "pipe.lanes", "how many sequences may be known; events of further ones are refused", default="100000"
            ),
            Option("pipe.forget", "a sequence that was silent for so long begins again", default="30d"),
            Option("cloudevents.*", "a CloudEvents attribute for events that come without it: a constant"),
        ),
    )
    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.auth = _secrets(self.settings)
        self.request_bytes = options.size(self.settings, "max-request-size")
        self.attributes_size = options.size(self.settings, "max-attributes-size", least=1024)
        self.backlog_records = options.integer(self.settings, "backlog.records", least=1)
        self.backlog_bytes = options.size(self.settings, "backlog.bytes", least=self.request_bytes)
        self.rate = _rate(self.settings)
        self.take_webhooks = options.boolean(self.settings, "webhooks")
        self.key = f"{_ATTRIBUTE}{self.settings['key']}"
        self.pipe = self.settings.get("pipe")
        self.pipe_key = self.settings["pipe.key"]
        anyone = self.settings["pipe.first"] == "any"
        self.pipe_first = None if anyone else options.integer(self.settings, "pipe.first")
        self.pipe_wait = options.duration(self.settings, "pipe.wait")
        self.lanes = (
            options.integer(self.settings, "pipe.lanes", least=1),
            options.duration(self.settings, "pipe.forget"),
        )
        """Number of lanes that may be known, and the seconds of silence after which a lane is forgotten."""
        self._watched: IngestStore | None = None
        if self.pipe is not None and self.take_webhooks and "webhooks" in settings:
            raise ConfigError(
                "gateway: option 'webhooks': a webhook has no sequence, which the pipe asks for; remove it"
            )
        for name, value in self.settings.items():
            if name.startswith(_ATTRIBUTE) and "{{" in value:
                raise ConfigError(
                    f"gateway: option '{name}' is a template, which would replace what the producer said; write a "
                    "constant, or a processor field.set with a condition"
                )

    @property
    def budget(self) -> Budget:
        """Limits of the events that may wait for the pipeline."""
        from conduit_tasks.gateway.store import Budget

        return Budget(self.backlog_records, self.backlog_bytes)

    @property
    def webhooks(self) -> Webhooks:
        """Settings for plain JSON, which is taken as webhooks."""
        from conduit_tasks.gateway.parse import Webhooks

        id_header, type_header = (self.settings.get(f"webhooks.{n}-header", "").lower() for n in ("id", "type"))
        return Webhooks(self.take_webhooks, id_header, type_header)

    @property
    def receiver(self) -> Callable[[], Receiver]:
        """Factory of the receiver of one lane; only valid if there is a `pipe`."""
        from conduit_tasks.pipes.registry import PIPES

        made = PIPES[str(self.pipe)].receiver
        # No queue of its own: an event that is not the next waits unanswered in the gateway; nothing unconfirmed is
        # kept.
        more = {"queue": 0} if str(self.pipe).startswith("continuous") else {}
        return lambda: made(first=self.pipe_first, **more)

    def news(self, position: Position) -> bool:
        if self._watched is None:
            self._watched = self._store()
        state = self._watched.state()
        return int(state.get("last", 0)) > max(int(state.get("acked", 0)), int(position.get("", 0)))

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        store = self._store()
        try:
            return store.plan(position.get(""), limit)
        finally:
            store.close()

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        store = self._store(raw=True)
        try:
            for page in store.entries(slice):
                yield self._batch(page)
        finally:
            store.close()

    def _batch(self, page: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """Builds a READ_SCHEMA batch. Structured data stays the JSON text it came as."""
        import pyarrow as pa

        from conduit_tasks.gateway.event import unpack
        from conduit_tasks.record.schema import AFTER_STRUCTURED, READ_SCHEMA

        structured, metadata, data = zip(*(unpack(event) for _, event in page))
        keys = [None if (key := m.get(self.key)) is None else key.encode() for m in metadata]
        none = pa.nulls(len(page), pa.binary())
        columns = [
            pa.array([id for id, _ in page], pa.binary()),
            pa.array([0] * len(page), pa.int8()),
            pa.array([list(m.items()) for m in metadata], READ_SCHEMA.field("metadata").type),
            pa.array(keys, pa.binary()),
            none,
            pa.array(data, pa.binary()),
            pa.array([AFTER_STRUCTURED if s else 0 for s in structured], pa.int8()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=READ_SCHEMA)

    def ack(self, position: Position) -> None:
        store = self._store()
        try:
            if "" in position:
                store.ack(position[""])
        finally:
            store.close()

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
        self._watched = None

    def _store(self, *, raw: bool = False) -> IngestStore:
        from conduit_tasks.broker.connection import connect
        from conduit_tasks.gateway.store import IngestStore
        from conduit_tasks.settings import settings

        return IngestStore(self.pipeline, self.connector, connect(settings(), raw=raw))


def _secrets(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns (kind, name) of every place that holds a token; [] if everybody may send."""
    said = options.words(settings, "auth")
    if said == ["none"]:
        return []
    out = []
    for word in said:
        kind, _, name = word.partition(":")
        if kind not in SECRETS or not name:
            raise ConfigError(
                "gateway: option 'auth' takes env:NAME, connection:ID, variable:KEY or none, never the token itself"
            )
        out.append((kind, name))
    return out


def _rate(settings: Mapping[str, str]) -> float | None:
    if "rate-limit" not in settings:
        return None
    try:
        return parse_rate(settings["rate-limit"])
    except ConfigError as error:
        raise ConfigError(f"option 'rate-limit': {error}") from None


SOURCE = GatewaySource
