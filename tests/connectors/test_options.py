"""Settings are checked before anything runs, and every message names the option."""

from __future__ import annotations

import pickle
import re

import pytest

from conduit_tasks.connectors import options, registry
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError

SPEC = Spec(
    "shop",
    "",
    (
        Option("path", "where it is", required=True),
        Option("format", "how", default="text", choices=("text", "csv")),
        Option("token", "who", secret=True, choices=("a", "b")),
        Option("cloudevents.*", "attributes"),
        Option("limit", "how many"),
    ),
)


def test_defaults_are_filled_in_and_prefixes_and_conduits_sdk_options_pass() -> None:
    given = {"path": "x", "cloudevents.type": "sold", "sdk.batch.size": "5"}
    assert SPEC.check(given) == {**given, "format": "text"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pth": "x"}, "shop: unknown option 'pth'; did you mean 'path'?"),
        ({"path": "x", "zzz": "1"}, "unknown option 'zzz'; it takes path, format"),
        ({}, "option 'path' is missing: where it is"),
        ({"path": " "}, "option 'path' is missing"),
        ({"path": "x", "format": "xml"}, "option 'format' cannot be 'xml'; it is one of text, csv"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_write(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SPEC.check(settings)
    assert message in str(raised.value)


def test_a_secret_is_never_printed() -> None:
    with pytest.raises(ConfigError) as raised:
        SPEC.check({"path": "x", "token": "hunter2"})
    assert "token" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_values_are_read_as_what_they_are() -> None:
    given = {"n": "7", "f": "0.5", "b": "True", "d": "1m30s", "s": "32MiB", "w": "a, b,,c"}
    assert options.integer(given, "n") == 7
    assert options.number(given, "f") == 0.5
    assert options.boolean(given, "b") is True
    assert options.duration(given, "d") == 90
    assert options.size(given, "s") == 32 << 20
    assert options.words(given, "w") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (options.integer, "many"), (options.integer, "-1"), (options.number, "nan"), (options.number, "x"),
        (options.boolean, "yes"), (options.duration, "5"), (options.size, "0"), (options.size, "big"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_by_name(read: object, value: str) -> None:
    with pytest.raises(ConfigError, match="option 'it'"):
        read({"it": value}, "it")  # type: ignore[operator]
    checked = pickle.loads(pickle.dumps(options.check(Spec("shop", "", (Option("it", ""),)), {"it": value})))
    with pytest.raises(ConfigError, match=r"^shop: option 'it'"):
        read(checked, "it")  # type: ignore[operator]


REDIS, SQL = "redis://h", "sqlite:///x"


@pytest.mark.parametrize(
    ("kind", "plugin", "settings", "said"),
    [
        ("source", "redis", {"url": "nonsense", "streams": "s"}, "option 'url' is no Redis address"),
        ("source", "redis", {"url": "http://h", "streams": "s"}, "option 'url' is no Redis address"),
        ("destination", "redis", {"url": "redis+nope://h", "stream": "s"}, "option 'url' is no Redis address"),
        ("source", "redis", {"url": REDIS, "streams": ","}, "option 'streams' names nothing"),
        ("source", "redis", {"url": REDIS, "streams": "s", "min-idle": "5"}, "option 'min-idle'"),
        ("source", "kafka", {"servers": "h:1", "topics": ","}, "option 'topics' names nothing"),
        ("source", "postgres", {"url": "postgresql://h/d", "tables": "t", "lag": "soon"}, "option 'lag'"),
        ("destination", "postgres", {"url": "postgresql://h/d", "table": "t", "index-table": ""}, "names no table"),
        ("destination", "sql", {"url": SQL, "table": "t", "index-table": "s."}, "option 'index-table' names no table"),
        (
            "source",
            "sql",
            {"url": SQL, "table": "t", "column": "c", "start-after": ""},
            "option 'start-after' is empty",
        ),
        ("source", "s3", {"bucket": "b", "endpoint-url": "u:p@h"}, "option 'endpoint-url' must not hold a user"),
        ("source", "s3", {"bucket": "b", "endpoint-url": "minio:9000"}, "option 'endpoint-url' must begin with"),
        ("destination", "sqs", {"queue": "q.fifo", "delay": "5s"}, "option 'delay' is not for FIFO queues"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_opened(
    kind: str, plugin: str, settings: dict[str, str], said: str
) -> None:
    found = registry.source_class(plugin) if kind == "source" else registry.destination_class(plugin)
    with pytest.raises(ConfigError, match=f"^{plugin}: .*{re.escape(said)}"):
        found(settings)
