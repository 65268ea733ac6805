"""What connectors say, log and store where a URL or a key is wrong: nothing of the secret (docs/security.md)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.registry import destination_class, source_class
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.operate.status import snapshot
from conduit_tasks.redis_client.connection import address, connect
from conduit_tasks.settings import Settings
from conduit_tasks.urls import readable
from tests.micro_batch.harness import run_once, write_pipeline
from tests.processors.answering import Asked, Reply, answering
from tests.redis_server import RedisServer

HERE = "127.0.0.1:1"
AWS = {"region": "us-east-1", "access-key-id": "AK", "secret-access-key": "S"}
POSTGRES = ("postgres", {"tables": "t"}, "url")
SQL = ("sql", {"table": "t", "column": "id"}, "url")
MYSQL = ("mysql", {"tables": "t"}, "url")
REDIS = ("redis", {"streams": "s"}, "url")
S3 = ("s3", {**AWS, "bucket": "b"}, "endpoint-url")
KAFKA = {"servers": HERE, "topics": "t", "timeout": "1s"}

WRONG = [
    *(
        (*kind, f"postgresql://u:{password}@{HERE}/db")
        for kind in (POSTGRES, SQL)
        for password in ("p@SECRET", "SECRET%zz")
    ),
    *(
        (*kind, f"postgresql://u:{password}@{HERE}/db")
        for kind in (POSTGRES, SQL)
        for password in ("SECRET/x", "SECRET[x")
    ),
    *(
        (*MYSQL, f"mysql://u:{password}@{HERE}/db")
        for password in ("p@SECRET", "SECRET%zz", "SECRET/x", "SECRET[x", "SECRET?x", "SECRET")
    ),
    (*MYSQL, f"postgresql://u:SECRET@{HERE}/db"),
    (*MYSQL, f"mysql://u:SECRET@{HERE}/db?ssl_ca=/nowhere"),
    *(
        (*REDIS, f"redis://u:{password}@{HERE}/0")
        for password in ("SECRET/x", "SECRET#x", "SECRET?x", "1/SECRET", "SECRET[")
    ),
    (*REDIS, f"redis+cluster://u:SECRET/x@{HERE}"),
    (*REDIS, f"redis://u:SECRET@{HERE}/0"),
    (*S3, f"http://u:SECRET@{HERE}"),
    (*S3, f"u:SECRET@{HERE}"),
    ("s3", {**AWS, "bucket": "b", "endpoint-url": f"http://{HERE}"}, "session-token", "SECRET\n"),
    ("sqs", AWS, "queue", f"http://u:SECRET@{HERE}/q"),
    ("delta", {"path": "s3://b/t"}, "storage.AWS_ENDPOINT_URL", f"http://u:SECRET@{HERE}"),
    ("kafka", KAFKA, "librdkafka.debug", "SECRET"),
    ("http", {"cursor.next": "etag"}, "url", "http://h:SECRET/"),
]


def _tried(make: Callable[[], Any]) -> BaseException:
    with pytest.raises(ConduitError) as raised:
        make()
    return raised.value


@pytest.mark.parametrize(("plugin", "settings", "option", "value"), WRONG)
def test_a_secret_that_cannot_be_read_is_in_no_message_and_no_log(
    plugin: str, settings: dict[str, str], option: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def plan() -> None:
        source = source_class(plugin)({**settings, option: value})
        try:
            source.plan({}, Limit())
        finally:
            source.close()

    error: BaseException | None = _tried(plan)
    assert option in str(error) or plugin == "kafka" or "Can't connect" in str(error)
    while error is not None:
        assert "SECRET" not in f"{error}"
        error = error.__cause__
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(
    ("plugin", "settings", "option", "value"),
    [
        ("postgres", {"table": "t"}, "url", f"postgresql://u:SECRET%zz@{HERE}/db"),
        ("mysql", {"table": "t"}, "url", f"mysql://u:SECRET/x@{HERE}/db"),
        ("redis", {"stream": "s"}, "url", f"redis://u:SECRET/x@{HERE}/0"),
        ("sqs", AWS, "queue", f"http://u:SECRET@{HERE}/q"),
        ("s3", {**AWS, "bucket": "b"}, "endpoint-url", f"http://u:SECRET@{HERE}"),
        ("delta", {"path": "s3://b/t"}, "storage.AWS_ENDPOINT_URL", f"http://u:SECRET@{HERE}"),
        ("iceberg", {"table": "a.t"}, "catalog.uri", f"http://u:SECRET@{HERE}"),
        ("iceberg", {"table": "a.t"}, "catalog.uri", f"postgresql://u:SECRET/x@{HERE}/db"),
    ],
)
def test_a_destination_refuses_it_when_it_is_made(
    plugin: str, settings: dict[str, str], option: str, value: str
) -> None:
    error = _tried(lambda: destination_class(plugin)({**settings, option: value}))
    assert option in str(error)
    assert "SECRET" not in str(error)


def test_what_is_escaped_is_taken_by_all() -> None:
    for url in (
        "postgresql://u:p%40%2F%25@h1:1,h2:2/db?sslmode=require",
        "redis+sentinel://u:p@h:1,h:2/service/0",
        "unix://u:p@/run/redis.sock?db=1",
        "rediss://h",
        "http://[::1]:9000",
    ):
        assert readable(url)
    assert address("redis://u:S/x@h:1/0") == address("redis://[") == "no address"
    with pytest.raises(ConfigError, match="%2F"):
        connect(Settings(redis_url="redis://u:S/x@h:1/0"))


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: {plugin}, settings: {settings}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/a.jsonl}}}}
"""


@pytest.mark.parametrize("plugin", ["http", "redis"])
def test_neither_state_nor_status_nor_the_run_says_it(
    plugin: str, home: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def reply(asked: Asked) -> Reply:
        more = {"Link": f'<{server.url}/?key=SECRET&at=1>; rel="next"'} if "at=1" not in asked.path else {}
        return 200, [{"n": 1}], more

    with answering(reply) as server:
        settings = {
            "http": {"url": f"{server.url}/?key=SECRET", "cursor.next": "link"},
            "redis": {"url": f"redis://u:SECRET@{HERE}/0", "streams": "s"},
        }[plugin]
        write_pipeline(home, "p", PIPELINE.format(plugin=plugin, settings=json.dumps(settings)))
        try:
            said = str(run_once("p"))
        except ConduitError as error:
            said = str(error)
    client = redis.Redis(unix_socket_path=redis_server.url.removeprefix("unix://"), decode_responses=True)
    state = {key: client.hgetall(key) for key in client.scan_iter("*") if client.type(key) == "hash"}
    client.close()
    assert state
    assert "SECRET" not in said + json.dumps(state) + _status() + caplog.text


def _status() -> str:
    found = snapshot("p")
    return json.dumps(found if isinstance(found, dict) else asdict(found), default=str)
