"""The kafka connector over TLS with SASL, on a listener of the real server that takes nothing else; its contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.errors import ConfigError, Unavailable
from tests.connectors.kafka import Kafka, everything
from tests.connectors.test_kafka_destination import record, rows
from tests.connectors.test_kafka_transactions import numbered


def login(kafka: Kafka, **changes: str) -> dict[str, str]:
    return {
        "servers": f"127.0.0.1:{kafka.secure_port}",
        "tls.enabled": "true",
        "caCert": str(kafka.server.folder / "tls.pem"),
        "saslMechanism": "PLAIN",
        "saslUsername": "conduit",
        "saslPassword": "right",
        "timeout": "60s",
        **changes,
    }


def fresh(topic: str) -> dict[str, str]:
    """The suite writes as one and the same destination each time: numbers of another time must not be known."""
    return {"topic": topic, "index-topic": f"index-{topic}"}


def test_records_are_sent_read_and_acked_over_tls_with_sasl(kafka: Kafka) -> None:
    topic = kafka.topic()
    destination = KafkaDestination({**login(kafka), "format": "payload", **fresh(topic)})
    destination.open(None)
    destination.write(rows([record(n) for n in range(3)]))
    destination.write(numbered([record(3)], 1, destination=topic))
    destination.close()
    # A commit is answered before readers see it
    assert len(kafka.values(topic)) == 4
    source = kafka.source(topic, **login(kafka))
    assert [r.after for r in everything(source)] == [b"0", b"1", b"2", b"3"]
    source.ack({f"{topic}:0": 4})
    assert kafka.committed(source.group, topic) == 4


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
        kafka.source(topic, **login(kafka, saslPassword="wrong-one", timeout="5s")).plan({}, Limit())
    assert "wrong-one" not in str(raised.value)


def test_a_certificate_that_is_not_trusted_is_not_taken(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    with pytest.raises(Unavailable):
        kafka.source(topic, **login(kafka, caCert="", timeout="2s")).plan({}, Limit())
    with pytest.raises(ConfigError, match="librdkafka refuses its configuration"):
        kafka.source(topic, **login(kafka, caCert=str(tmp_path / "nowhere.pem"))).plan({}, Limit())
