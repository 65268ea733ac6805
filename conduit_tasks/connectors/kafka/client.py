"""Connection options, librdkafka's configuration and its errors: shared by source and destination of `kafka`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.kafka.options import PASSED_ON, canonical, check_passed_on, passed_on
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.settings import settings as installation

log = logging.getLogger(__name__)

NO_OPTION = "conduit.no.option"
"""A name that librdkafka does not know."""


def transactional_id(pipeline: str, destination: str, shard: int | None = None) -> str:
    """Returns the id of a destination's transactions, or of those of one of its shards: no id of a pipeline or a
    connector holds a slash. The groups that keep the index have names that begin with it."""
    return f"conduit.{pipeline}.{destination}" + ("" if shard is None else f"/{shard}")


CONNECTION = (
    Option("servers", "brokers to ask for all others, comma-separated: host:port", required=True),
    Option("clientID", "how connections of this connector are called in the broker's log", default="conduit-tasks"),
    Option("tls.enabled", "speak TLS", default="false"),
    Option("caCert", "certificates to trust: PEM, or a file of it"),
    Option("clientCert", "certificate of ours: PEM, or a file of it"),
    Option("clientKey", "its key: PEM, or a file of it", secret=True),
    Option("insecureSkipVerify", "take any certificate and any host name", default="false"),
    Option("saslMechanism", "how to authenticate", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    Option("saslUsername", "user of saslMechanism"),
    Option("saslPassword", "its password", secret=True),
    Option("timeout", "how long one question to the brokers may take", default="30s"),
    Option(f"{PASSED_ON}*", "any other setting of librdkafka, such as librdkafka.socket.nagle.disable", secret=True),
)


def check_connection(settings: Mapping[str, str], spec: Spec) -> None:
    """Raises ConfigError, naming the option, if a setting of the connection is wrong. `spec`: of the connector."""
    options.duration(settings, "timeout")
    options.boolean(settings, "insecureSkipVerify")
    if not options.words(settings, "servers"):
        raise ConfigError("kafka: option 'servers' names no broker; write host:port")
    tls = options.boolean(settings, "tls.enabled")
    for name in ("caCert", "clientCert", "clientKey"):
        if settings.get(name) and not tls:
            raise ConfigError(f"kafka: option '{name}' needs tls.enabled: true")
    if bool(settings.get("clientCert")) != bool(settings.get("clientKey")):
        raise ConfigError("kafka: options 'clientCert' and 'clientKey' need each other")
    if settings.get("saslMechanism") and not (settings.get("saslUsername") and settings.get("saslPassword")):
        raise ConfigError("kafka: option 'saslMechanism' needs 'saslUsername' and 'saslPassword'")
    check_passed_on(settings, spec)
    check_known(settings)


def check_known(settings: Mapping[str, str]) -> None:
    """Raises ConfigError, naming the option, if librdkafka does not know it or does not take its value. Does nothing if
    the client library is not installed. No client is made: each is refused for NO_OPTION at the latest."""
    given = [name for name in settings if name.startswith(PASSED_ON)]
    if not given:
        return
    try:
        kafka = library()
    except ConfigError:
        return
    for name in given:
        try:
            kafka.Producer({canonical(name): settings[name], NO_OPTION: ""})
        except (kafka.KafkaException, ValueError, TypeError) as error:
            if NO_OPTION not in (text := said(error)):
                raise ConfigError(
                    f"kafka: option '{name}': librdkafka says: {without_value(text)}; its CONFIGURATION.md lists names "
                    "and values"
                ) from None


def library() -> Any:
    """Returns the module `confluent_kafka`. Raises ConfigError if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError(
            f"kafka: the client library is missing ({error}); install it: pip install 'conduit-tasks[kafka]'"
        ) from error
    return confluent_kafka


def configuration(settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns librdkafka's settings of a connection. librdkafka itself retries after errors of brokers that come and
    go, so these are not logged: an error that matters is raised by the call that it makes fail."""
    tls, sasl = options.boolean(settings, "tls.enabled"), settings.get("saslMechanism")
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.words(settings, "servers")),
        "client.id": settings["clientID"],
        "security.protocol": ("SASL_SSL" if tls else "SASL_PLAINTEXT") if sasl else ("SSL" if tls else "PLAINTEXT"),
        "reconnect.backoff.max.ms": 1_000,
        "error_cb": _quiet,
        "logger": _Debug(),
    }
    if sasl:
        config |= {
            "sasl.mechanisms": sasl,
            "sasl.username": settings["saslUsername"],
            "sasl.password": settings["saslPassword"],
        }
    if tls:
        for name, key in (("caCert", "ssl.ca"), ("clientCert", "ssl.certificate"), ("clientKey", "ssl.key")):
            if value := settings.get(name):
                config[f"{key}.pem" if "-----BEGIN" in value else f"{key}.location"] = _pem(value)
        config["enable.ssl.certificate.verification"] = not options.boolean(settings, "insecureSkipVerify")
    return config | passed_on(settings)


def made(make: Callable[[], Any]) -> Any:
    """Makes a client. Raises ConfigError if librdkafka does not take its configuration (a wrong value, a bad key)."""
    from confluent_kafka import KafkaException

    try:
        return make()
    except (KafkaException, ValueError, TypeError) as error:
        # librdkafka quotes the value, which may be secret.
        shown = without_value(said(error))
        raise ConfigError(f"kafka: librdkafka refuses its configuration: {shown}; fix the options") from None


def without_value(text: str) -> str:
    """Returns librdkafka's message about a value without the value, which may itself hold quotes and line ends."""
    begin, end = text.find('"'), text.rfind('" for configuration property')
    return text[:begin].rstrip() + text[end + 1 :] if 0 <= begin < end else text


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Raises Unavailable if the brokers cannot be reached or may answer otherwise later, and ConfigError if they refuse
    our credentials or rights. `what`: the request, in words."""
    from confluent_kafka import KafkaError, KafkaException

    refusals = {
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    try:
        yield
    except KafkaException as error:
        if error_of(error).code() in refusals:
            raise ConfigError(
                f"kafka: {what}: {said(error)}; fix the credentials or the rights on the cluster"
            ) from None
        raise Unavailable(f"kafka: {what}: {said(error)}") from None


def error_of(error: Exception) -> Any:
    """Returns the KafkaError in an exception."""
    return error.args[0]


def said(error: BaseException) -> str:
    """Returns librdkafka's message, in one line."""
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first)


def part_of(topic: str, partition: int) -> str:
    """Returns the name of a partition in positions: `topic:partition`."""
    return f"{topic}:{partition}"


def topic_partition(part: str) -> tuple[str, int]:
    """Returns topic and number of a partition from its name, the opposite of `part_of`; a topic's name holds no
    colon."""
    topic, _, partition = part.rpartition(":")
    return topic, int(partition)


def _pem(value: str) -> str:
    return value if "-----BEGIN" in value else str(Path(installation().path(value)))


def _quiet(_: Any) -> None:
    """Ignores an error; see `configuration`."""


class _Debug:
    """Logger for librdkafka that writes everything at level debug: librdkafka reports at high levels what it recovers
    from by itself, and what becomes a dead letter here."""

    def log(self, _: int, text: str, *values: object) -> None:
        log.debug(text, *values)
