"""librdkafka's own options that a pipeline file passes on, and those that the connector decides itself, by all their
names.

One table for source, destination and dead letters. The names are those of librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from conduit_tasks.connectors.base import Spec
from conduit_tasks.errors import ConfigError

PASSED_ON = "librdkafka."

ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanism": "sasl.mechanisms",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "auto.commit.enable": "enable.auto.commit",
}
"""Second names of options → the name that is used here. If a configuration has two names of one option, librdkafka
takes the last."""


class Ours(NamedTuple):
    """Option that is not passed on. `setting`: our setting for it, which not every connector has; `everywhere`: refused
    even by a connector without that setting."""

    setting: str = ""
    everywhere: bool = True


OURS = {
    "bootstrap.servers": Ours("servers"),
    "client.id": Ours("clientID"),
    # Range that is read, and the offsets that are confirmed (B1 to B4)
    "group.id": Ours("groupID"),
    "enable.auto.commit": Ours(),
    "enable.auto.offset.store": Ours(),
    "offset.store.method": Ours(),
    "auto.offset.reset": Ours("readFromBeginning"),
    "isolation.level": Ours(),
    "enable.partition.eof": Ours(),
    "check.crcs": Ours(),
    # Messages sent once, in order, each with a delivery report (C17)
    "acks": Ours("acks"),
    "enable.idempotence": Ours(),
    "enable.gapless.guarantee": Ours(),
    "transactional.id": Ours(),
    "transaction.timeout.ms": Ours("deliveryTimeout"),
    "message.timeout.ms": Ours("deliveryTimeout"),
    "retries": Ours("deliveryTimeout"),
    "queuing.strategy": Ours(),
    "delivery.report.only.error": Ours(),
    "queue.buffering.max.messages": Ours("chunk"),
    "compression.type": Ours("compression"),
    "batch.size": Ours("batchBytes"),
    # For a consumer this is the amount that it takes at a time
    "message.max.bytes": Ours("batchBytes", everywhere=False),
}
"""Options on which the guarantees rest, or that a setting of ours decides."""

CHOSEN = {
    "security.protocol": "saslMechanism",
    "sasl.mechanisms": "saslMechanism",
    "sasl.username": "saslUsername",
    "sasl.password": "saslPassword",
    "ssl.ca.location": "caCert",
    "ssl.ca.pem": "caCert",
    "ssl.certificate.location": "clientCert",
    "ssl.certificate.pem": "clientCert",
    "ssl.key.location": "clientKey",
    "ssl.key.pem": "clientKey",
    "enable.ssl.certificate.verification": "insecureSkipVerify",
}
"""Options that may be passed on (there are more ways to sign in than settings), but not together with our setting for
the same thing."""


def check_passed_on(settings: Mapping[str, str], spec: Spec) -> None:
    """Raises ConfigError, naming the option, if one cannot be passed on. `spec`: of the connector, which may not have
    every setting."""
    known = {option.name for option in spec.options}
    names: dict[str, str] = {}
    for name in settings:
        if not name.startswith(PASSED_ON):
            continue
        option = canonical(name)
        if (other := names.setdefault(option, name)) != name:
            raise ConfigError(f"kafka: option '{name}' is another name of '{other}'; leave one out")
        ours = OURS.get(option)
        if ours is not None and (ours.everywhere or ours.setting in known):
            instead = f"; write '{ours.setting}' instead" if ours.setting in known else "; leave it out"
            raise ConfigError(f"kafka: option '{name}' is decided by this connector{instead}")
        setting = CHOSEN.get(option)
        if setting and settings.get(setting, "false") not in ("", "false"):
            raise ConfigError(f"kafka: option '{name}' says what '{setting}' says, too; leave one out")


def passed_on(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the options that are passed on, each by the name that is used here."""
    return {canonical(name): value for name, value in settings.items() if name.startswith(PASSED_ON)}


def canonical(name: str) -> str:
    """Returns the name that is used here for an option as the file has it."""
    option = name.removeprefix(PASSED_ON)
    return ALIASES.get(option, option)
