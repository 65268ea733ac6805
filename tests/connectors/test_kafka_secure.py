"""The kafka connector over TLS with SASL, on a listener of the real server that takes nothing else; its contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import ConfigError, Unavailable
from tests.connectors.kafka import Kafka, everything


def login(kafka: Kafka, **changes: str) -> dict[str, str]:
    return {
        "servers": f"127.0.0.1:{kafka.secure_port}",
        "tls.enabled": "true",
        "caCert": str(kafka.server.folder / "tls.pem"),
        "saslMechanism": "PLAIN",
        "saslUsername": "conduit",
        "saslPassword": "right",
        "timeout": "5s",
        **changes,
    }


def fresh(topic: str) -> dict[str, str]:
    """The suite writes as one and the same destination each time: numbers of another time must not be known."""
    return {"topic": topic, "index-topic": f"index-{topic}"}


def test_it_keeps_its_contract_over_tls_with_sasl(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    both = login(kafka)
    source = {**both, "topics": topic, "readFromBeginning": "true"}
    accept("kafka", source=source, destination={**both, **fresh(topic)}).require()


@pytest.mark.parametrize("format", ["payload", "opencdc"])
def test_it_keeps_its_contract(kafka: Kafka, format: str) -> None:
    topic = kafka.topic()
    source = {"servers": kafka.servers, "topics": topic, "readFromBeginning": "true"}
    target = {"servers": kafka.servers, "format": format, **fresh(topic)}
    accept("kafka", source=source, destination=target).require()


def test_certificates_may_be_given_as_text(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"a"])
    text = (kafka.server.folder / "tls.pem").read_text()
    certificate = text[text.index("-----BEGIN CERTIFICATE") :]
    assert len(everything(kafka.source(topic, **login(kafka, caCert=certificate)))) == 1
    assert len(everything(kafka.source(topic, **login(kafka, caCert="", insecureSkipVerify="true")))) == 1


def test_a_wrong_password_is_an_error_of_the_file_that_does_not_show_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    with pytest.raises((ConfigError, Unavailable)) as raised:
        kafka.source(topic, **login(kafka, saslPassword="wrong-one")).plan({}, Limit())
    assert "wrong-one" not in str(raised.value)


def test_a_certificate_that_is_not_trusted_is_not_taken(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    with pytest.raises(Unavailable):
        kafka.source(topic, **login(kafka, caCert="", timeout="2s")).plan({}, Limit())
    with pytest.raises(ConfigError, match="librdkafka refuses its configuration"):
        kafka.source(topic, **login(kafka, caCert=str(tmp_path / "nowhere.pem"))).plan({}, Limit())
