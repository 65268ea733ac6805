"""The source `gateway`: its options (and how the places of tokens and secrets are written), plan, reading and acks of
events that `conduit gateway` stored in Redis before it answered their producers (T2).

Events are planned by number, read without being removed, and removed when the source is acked. Their ids in the stream
are the positions; a producer's own CloudEvents attributes are metadata `cloudevents.*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Watchable
from conduit_tasks.connectors.signatures import ALGORITHMS, ENCODINGS, HEADER, only_with
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import parse_rate

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.gateway.parse import Webhooks
    from conduit_tasks.gateway.store import Budget, IngestStore
    from conduit_tasks.gateway.verify import Scheme
    from conduit_tasks.pipes.base import Receiver

_ATTRIBUTE = "cloudevents."
SECRETS = ("env", "connection", "variable")
SERVICES = ("github", "stripe", "slack")
SCHEMES = ("standard-webhooks", *SERVICES, "hmac")
_BELONGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("verify.secret", "verify.tolerance", "verify.replays", "verify.remember"), SCHEMES),
    **dict.fromkeys(
        ("verify.header", "verify.algorithm", "verify.encoding", "verify.prefix", "verify.timestamp-header"),
        ("hmac",),
    ),
}
"""Settings of the verification → the schemes that they have a meaning with."""


class GatewaySource(Watchable):
    """Token: the number of an event. One partition, in the order in which the events were stored."""

    spec = Spec(
        "gateway",
        "Takes events over HTTP (CloudEvents, webhooks) and answers when they are stored; served by `conduit gateway`.",
        (
            Option(
                "auth",
                "where the tokens are that a producer may show: comma-separated env:NAME, connection:ID (an Airflow "
                "connection's password), variable:KEY (an Airflow variable); or none, the default with verify",
                example="none",
            ),
            Option(
                "verify",
                "the scheme by which every request must be signed; without it, signatures are not looked at",
                choices=SCHEMES,
            ),
            Option(
                "verify.secret",
                "where the secret is, as for auth; of several, comma-separated, any may have signed: to rotate them",
                example="env:X",
            ),
            Option(
                "verify.tolerance",
                "how far a signed time may be from now; also how long requests are remembered to refuse replays",
                default="5m",
            ),
            Option(
                "verify.replays",
                "refuse: the same signed request a second time is answered with 409; take: it is one more event",
                default="refuse",
                choices=("refuse", "take"),
            ),
            Option(
                "verify.remember",
                "requests that may be remembered, in Redis; further ones are answered with 429",
                default="250000",
            ),
            Option("verify.header", "with hmac: the header that holds the signature", default=HEADER),
            Option("verify.algorithm", "with hmac: the hash", default="sha256", choices=ALGORITHMS),
            Option("verify.encoding", "with hmac: how the header writes the signature", "hex", choices=ENCODINGS),
            Option("verify.prefix", "with hmac: text before the signature in its header, such as sha256="),
            Option(
                "verify.timestamp-header",
                "with hmac: the header that holds a Unix time in seconds, which is signed before the body, with a dot "
                "between them; without it, the body alone is signed",
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
        self.auth = _auth(self.settings)
        self.scheme, self.secrets, self.remembered = self._verification(settings)
        """Rules by which requests are verified, None without them; the places of the secrets; limit of requests that
        are remembered."""
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

    def _verification(self, given: Mapping[str, str]) -> tuple[Scheme | None, list[tuple[str, str]], int]:
        s = self.settings
        only_with(s, given, "verify", _BELONGS)
        if "verify" not in s:
            return None, [], 0
        from conduit_tasks.gateway.verify import scheme_of

        name = s["verify"]
        if not s.get("verify.secret", "").strip():
            raise ConfigError(
                "gateway: option 'verify' needs verify.secret, which says where the secret is: env:NAME, "
                "connection:ID or variable:KEY"
            )
        secrets = _places(s, "verify.secret")
        if not secrets:
            raise ConfigError("gateway: option 'verify.secret' names nothing")
        if name in SERVICES and "pipe" in s:
            raise ConfigError(
                f"gateway: option 'verify': what {name} sends has no sequence, which the pipe asks for; remove one"
            )
        tolerance = options.duration(s, "verify.tolerance")
        if tolerance < 1:
            raise ConfigError("gateway: option 'verify.tolerance' must be at least 1s")
        plain = {
            "header": options.header(s, "verify.header"),
            "timestamp": options.header(s, "verify.timestamp-header"),
            "algorithm": s["verify.algorithm"],
            "encoding": s["verify.encoding"],
            "prefix": s.get("verify.prefix", ""),
        }
        if name == "hmac" and not plain["header"]:
            raise ConfigError("gateway: option 'verify.header' is empty; name the header that holds the signature")
        if plain["header"] == plain["timestamp"]:
            raise ConfigError("gateway: option 'verify.timestamp-header' names the header of the signature")
        scheme = scheme_of(name, tolerance, replays=s["verify.replays"] == "refuse", plain=plain)
        return scheme, secrets, options.integer(s, "verify.remember", least=1)

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
        return Webhooks(self.take_webhooks, id_header, type_header, self.settings.get("verify", ""))

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
        from conduit_tasks.gateway.store import IngestStore
        from conduit_tasks.redis_client.connection import connect
        from conduit_tasks.settings import settings

        return IngestStore(self.pipeline, self.connector, connect(settings(), raw=raw))


def _auth(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the places of tokens; [] if everybody may send."""
    said = options.words(settings, "auth")
    if not said and "verify" not in settings:
        raise ConfigError(
            "gateway: option 'auth' is missing: where the tokens are that a producer may show, or none; requests that "
            "are signed (verify) need none"
        )
    return [] if said in ([], ["none"]) else _places(settings, "auth", also=" or none")


def _places(settings: Mapping[str, str], option: str, *, also: str = "") -> list[tuple[str, str]]:
    """Returns (kind, name) of every place that holds a token or secret."""
    what, out = "token" if option == "auth" else "secret", []
    for word in options.words(settings, option):
        kind, _, name = word.partition(":")
        if kind not in SECRETS or not name:
            raise ConfigError(
                f"gateway: option '{option}' takes env:NAME, connection:ID{',' if also else ' or'} variable:KEY{also}, "
                f"never the {what} itself"
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
