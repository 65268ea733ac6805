"""Options of librdkafka that are passed on: what is ours is refused by all its names, the rest takes effect."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from conduit_tasks.connectors.kafka import client as kafka_client
from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.kafka.options import ALIASES, CHOSEN, OURS, PASSED_ON
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.load import load_file

SERVER = {"servers": "127.0.0.1:1"}
VALUES = {"security.protocol": "sasl_plaintext", "enable.ssl.certificate.verification": "false"}
"""Of options that do not take any."""
SIDES: dict[str, tuple[Callable[[dict[str, str]], Any], set[str]]] = {
    "source": (lambda s: KafkaSource({**SERVER, "topics": "t", **s}), {o.name for o in KafkaSource.spec.options}),
    "destination": (lambda s: KafkaDestination({**SERVER, **s}), {o.name for o in KafkaDestination.spec.options}),
}


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> str:
    """librdkafka's CONFIGURATION.md, as the library in use has it."""
    assert confluent_kafka.libversion()
    loaded = re.search(r"/\S*librdkafka\S*", Path("/proc/self/maps").read_text())
    assert loaded is not None
    path, libc = tmp_path_factory.mktemp("librdkafka") / "CONFIGURATION.md", ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(path).encode(), b"w"))
    ctypes.CDLL(loaded[0]).rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    return path.read_text()


def test_every_name_that_librdkafka_knows_for_an_option_is_in_the_table(documented: str) -> None:
    names = dict(re.findall(r"^([\w.]+) .*Alias for `([\w.]+)`", documented, re.MULTILINE))
    assert len(names) > 5
    assert {frozenset(pair) for pair in names.items()} == {frozenset(pair) for pair in ALIASES.items()}


def test_the_table_names_options_that_there_are(documented: str) -> None:
    options = set(re.findall(r"^([\w.]+) ", documented, re.MULTILINE))
    assert options >= {*OURS, *CHOSEN, *ALIASES, *ALIASES.values()}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("option", [*OURS, *(name for name, of in ALIASES.items() if of in OURS)])
def test_an_option_that_is_ours_is_refused_by_each_name_with_the_name_of_our_setting(option: str, side: str) -> None:
    make, known = SIDES[side]
    ours = OURS[ALIASES.get(option, option)]
    if not ours.everywhere and ours.setting not in known:
        make({f"{PASSED_ON}{option}": "1000"})
        return
    with pytest.raises(ConfigError, match=f"'{PASSED_ON}{option}' is decided by this connector") as raised:
        make({f"{PASSED_ON}{option}": "1"})
    assert (f"write '{ours.setting}' instead" if ours.setting in known else "leave it out") in str(raised.value)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("option", [*CHOSEN, "sasl.mechanism"])
def test_what_a_setting_of_ours_says_is_not_said_twice(option: str, side: str) -> None:
    make, _ = SIDES[side]
    tls = {"tls.enabled": "true", "caCert": "a", "clientCert": "b", "clientKey": "c", "insecureSkipVerify": "true"}
    sasl = {"saslMechanism": "PLAIN", "saslUsername": "u", "saslPassword": "p"}
    with pytest.raises(ConfigError, match=rf"'{PASSED_ON}{option}' says what '\w+' says"):
        make({**tls, **sasl, f"{PASSED_ON}{option}": "x"})
    # Without ours it takes effect, by either name
    value = VALUES.get(option, "x")
    passed = kafka_client.configuration(make({f"{PASSED_ON}{option}": value}).settings)
    assert passed[ALIASES.get(option, option)] == value
    assert not passed.keys() & ALIASES.keys()


@pytest.mark.parametrize("side", SIDES)
def test_one_option_by_two_names_is_refused(side: str) -> None:
    make, _ = SIDES[side]
    with pytest.raises(ConfigError, match="another name of"):
        make({f"{PASSED_ON}linger.ms": "1", f"{PASSED_ON}queue.buffering.max.ms": "2"})


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.ms"])
def test_what_is_passed_on_takes_effect_by_either_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_client, "library", lambda: SimpleNamespace(Producer=made.append))
    KafkaDestination({**SERVER, f"{PASSED_ON}{name}": "70"})._connected({})
    assert made[0]["linger.ms"] == "70"
    assert "queue.buffering.max.ms" not in made[0]


FILE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: kafka, settings: {servers: "h:1", topics: t, librdkafka.metadata.broker.list: x}}
      - id: out
        type: destination
        plugin: kafka
        settings: {servers: "h:1", topic: t, librdkafka: {request.required.acks: "1"}}
        dead-letter-queue:
          window-size: 0
          plugin: kafka
          settings: {servers: "h:1", topic: d, librdkafka.message.send.max.retries: "0"}
"""


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("Acks", "0", 'No such configuration property: "Acks"'),
        ("socket.nagle.disabled", "true", 'No such configuration property: "socket.nagle.disabled"'),
        ("socket.nagle.disable", "hush-hush", 'Expected bool value for "socket.nagle.disable": true or false'),
        ("security.protocol", "hush-hush", 'Invalid value for configuration property "security.protocol"'),
        ("debug", "hush-hush", 'Invalid value for configuration property "debug"'),
        ("fetch.wait.max.ms", "", "fetch.wait.max.ms"),
    ],
)
def test_an_option_or_value_that_librdkafka_does_not_know_is_named_before_anything_runs(
    option: str, value: str, why: str, side: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make, _ = SIDES[side]
    with pytest.raises(ConfigError) as refused:
        make({f"{PASSED_ON}{option}": value})
    assert f"option '{PASSED_ON}{option}'" in str(refused.value)
    assert why in str(refused.value)
    assert "hush" not in str(refused.value)
    # And what it knows is taken, without a client that says it has no servers
    make({f"{PASSED_ON}socket.nagle.disable": "true", f"{PASSED_ON}fetch.wait.max.ms": "5"})
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("side", SIDES)
def test_without_the_client_library_a_file_is_good_as_far_as_it_can_be_told(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _ = SIDES[side]
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    make({f"{PASSED_ON}Acks": "0"})
    with pytest.raises(ConfigError, match="decided by this connector"):
        make({f"{PASSED_ON}acks": "0"})


def test_it_is_found_at_its_place_in_source_destination_and_dead_letter_queue(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    found = load_file(path, plugins=True, env={}).errors
    assert [(f.code, f.line) for f in found] == [("E205", 5), ("E205", 9), ("E205", 13)]
    assert all(said in f.message for f, said in zip(found, ("'servers'", "'acks'", "'deliveryTimeout'"), strict=True))
    texts = FILE.splitlines()
    places = [texts[f.line - 1][f.column - 1 :] for f in found]
    assert places[0].startswith("librdkafka.metadata.broker.list")
    assert places[1].startswith("request.required.acks")
    assert places[2].startswith("librdkafka.message.send.max.retries")
