"""`conduit gateway` as its producers see it: a real process, a real Redis."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from conduit_tasks.gateway import serve
from conduit_tasks.gateway.commit import PATIENCE
from conduit_tasks.gateway.event import unpack
from conduit_tasks.settings import settings
from tests.gateway.conftest import TOKEN, Answer, GatewayProcess, event, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]


def ids(stored: Stored) -> list[str]:
    return [unpack(e)[1]["cloudevents.id"] for e in stored()]


@pytest.mark.proves("T2")
def test_events_of_every_mode_are_stored_when_they_are_answered(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home)
    gateway = serving()
    structured, batch = "application/cloudevents+json", "application/cloudevents-batch+json"
    binary = {"ce_specversion": "1.0", "ce_id": "b", "ce_source": "/x", "ce_type": "t"}
    # When one of each is sent, then each answer means that it is there
    assert gateway.post({"hook": 1}).status == 202
    assert len(stored()) == 1
    assert gateway.post(b"data", type="text/plain", **binary).status == 202
    assert gateway.post(event(1), type=structured).status == 202
    assert gateway.post([event(2), event(3)], type=batch).status == 202
    assert ids(lambda: stored()[1:]) == ["b", "e1", "e2", "e3"]
    # And what is refused leaves nothing
    bad = gateway.post([event(4), {**event(5), "id": ""}], type=batch)
    assert (bad.status, bad.problem["attribute"], bad.problem["event"]) == (400, "id", 1)
    assert len(stored()) == 5
    assert gateway.request("GET", "/healthz").status == 200
    ready = gateway.request("GET", "/readyz")
    assert (ready.status, json.loads(ready.body)["sources"]) == (200, ["/ingest/p/web"])
    # And asked to stop, it ends well
    assert gateway.stop() == 0


def test_only_a_right_token_opens_a_source_and_none_is_ever_shown(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home, auth="env:WEB_TOKEN, connection:web, variable:web")
    connection = json.dumps({"conn_type": "http", "password": "from-connection"})
    more = {
        **{"AIRFLOW_CONN_WEB": connection, "AIRFLOW_VAR_WEB": "from-variable"},
        **{"AIRFLOW_HOME": str(gateway_home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://"},
    }
    gateway = serving(**more)
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": "Bearer"}):
        answer = gateway.post({}, **wrong)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.problem["title"] == "Not authorised"
    assert stored() == []
    for right in (TOKEN, "from-connection", "from-variable"):
        assert gateway.post({}, authorization=f"Bearer {right}").status == 202
    assert len(stored()) == 3
    gateway.stop()
    said = gateway.log.read_text()
    assert not any(token in said for token in (TOKEN, "from-connection", "from-variable", "wrong"))


def test_without_its_token_a_source_is_not_served_and_the_message_names_where_it_should_be(
    gateway_home: Path, fsyncing: RedisServer
) -> None:
    write_pipeline(gateway_home, auth="env:NO_SUCH_TOKEN")
    said = GatewayProcess(gateway_home, fsyncing.url).refuses()
    assert "environment variable NO_SUCH_TOKEN is missing" in said
    assert "no pipeline in" in said


def test_a_redis_that_answers_before_it_fsyncs_is_refused_unless_that_is_asked_for_by_name(
    home: Path, redis_server: RedisServer
) -> None:
    # Given a Redis with everysec
    write_pipeline(home)
    process = GatewayProcess(home, redis_server.url)
    said = process.refuses()
    assert "appendfsync everysec" in said
    assert "Set `appendfsync always`" in said
    # When it is asked for
    process.options = ("--fsync", "everysec")
    process.start()
    assert process.post({}).status == 202
    assert "durable in Redis: everysec" in process.log.read_text()
    assert process.stop() == 0


def test_a_body_past_the_limit_is_refused_before_it_is_read(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home, max_request_size="64KiB", backlog={"bytes": "1MiB"})
    gateway = serving()
    host, port = gateway.address.split(":")
    head = b"POST /ingest/p/web HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"

    def status(connection: socket.socket) -> bytes:
        with connection.makefile("rb") as answer:
            return answer.readline()

    # Said in advance: refused without a byte of it
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head + b"content-length: 65537\r\n\r\n")
        assert b" 413 " in status(connection)
    # In pieces without an end: refused at the limit
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        connection.sendall(piece)
        connection.sendall(piece)
        assert b" 413 " in status(connection)
    assert gateway.post(b'"' + b"x" * 65534 + b'"').status == 202
    assert len(stored()) == 1


@pytest.mark.proves("C13", "T2")
def test_a_burst_past_the_backlog_is_refused_at_the_door_and_what_was_taken_is_kept(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    # Given room for 2,500 events, and a burst of 50,000 from several producers at once
    write_pipeline(gateway_home, backlog={"records": 2500})
    gateway = serving()

    def produce(producer: int) -> list[int]:
        taken = []
        for n in range(50):
            batch = [event(producer * 10_000 + n * 250 + i) for i in range(250)]
            answer = gateway.post(batch, type="application/cloudevents-batch+json")
            if answer.status == 202:
                taken += [e["data"]["n"] for e in batch]
            else:
                assert (answer.status, answer.headers["retry-after"]) == (429, "10")
        return taken

    with ThreadPoolExecutor(4) as producers:
        taken = list(producers.map(produce, range(4)))
    # Then exactly what was answered with success is there, each producer's in its order
    there = [json.loads(unpack(e)[2] or b"")["n"] for e in stored()]
    assert len(there) == 2500
    assert sorted(there) == sorted(n for of in taken for n in of)
    for number, of in enumerate(taken):
        assert [n for n in there if n // 10_000 == number] == of
    # And a request that can never fit says so
    assert gateway.post([event(n) for n in range(2501)], type="application/cloudevents-batch+json").status == 413


def test_a_source_that_is_too_fast_is_told_when_to_come_back(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home, rate_limit="2/s")
    gateway = serving()
    answers: list[Answer] = []

    def post() -> int:
        answers.append(gateway.post({}))
        return answers[-1].status

    def slow() -> list[Answer]:
        return [a for a in answers if a.status == 429]

    # When more comes than it takes; where this machine stands still in between, it may take more
    until(lambda: post() == 429 and len(slow()) >= 4)
    assert all(1 <= int(a.headers["retry-after"]) <= 3 for a in slow())
    until(lambda: post() == 202)
    # Then what was taken is there, and nothing else
    assert len(stored()) == len(answers) - len(slow())


@pytest.mark.proves("T2", "C13")
def test_a_redis_that_is_full_refuses_events_and_takes_them_again_when_it_has_room(
    gateway_home: Path, serving: Serving, stored: Stored, fsyncing: RedisServer
) -> None:
    write_pipeline(gateway_home)
    gateway = serving()
    assert gateway.post({}).status == 202
    client = Redis(unix_socket_path=str(fsyncing.socket))
    try:
        client.config_set("maxmemory", 1)
        refused = gateway.post({})
        assert (refused.status, refused.problem["title"]) == (429, "Broker full")
        assert refused.headers["retry-after"] == "10"
        # It serves all the same, and says so
        assert gateway.request("GET", "/readyz").status == 200
    finally:
        client.config_set("maxmemory", 0)
        client.close()
    assert gateway.post({}).status == 202
    assert len(stored()) == 2


@pytest.mark.proves("T2")
def test_while_redis_is_away_nothing_is_taken_and_afterwards_all_goes_on(gateway_home: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    redis = RedisServer(tmp_path / "own")
    redis.start("--appendfsync", "always")
    write_pipeline(gateway_home)
    gateway = GatewayProcess(gateway_home, redis.url).start()
    try:
        assert gateway.post({}).status == 202
        redis.kill()
        # The first waits for Redis to come back as long as it may, then all are told at once
        began = time.monotonic()
        first = gateway.post({})
        waited = time.monotonic() - began
        assert (first.status, first.headers["retry-after"]) == (503, "2")
        began = time.monotonic()
        assert [gateway.post({}).problem["title"] for _ in range(10)] == ["Not stored"] * 10
        assert time.monotonic() - began < 10 * waited / 2
        assert gateway.request("GET", "/readyz").status == 503
        assert gateway.request("GET", "/healthz").status == 200
        # Back, but as one that would lose events: still refused
        redis.start("--appendfsync", "everysec")
        time.sleep(1.5)
        assert gateway.request("GET", "/readyz").status == 503
        redis.kill()
        redis.start("--appendfsync", "always")
        until(lambda: gateway.request("GET", "/readyz").status == 200)
        assert gateway.post({}).status == 202
        # And a short absence is not noticed
        while (away := absence(redis, gateway)) is None:
            until(lambda: gateway.request("GET", "/readyz").status == 200)
        assert away == 202
        assert gateway.stop() == 0
    finally:
        redis.kill()


def absence(redis: RedisServer, gateway: GatewayProcess) -> int | None:
    """What a producer is told while Redis is away for a second; None where this machine kept it away for longer."""
    back: list[float] = []

    def start() -> None:
        redis.start("--appendfsync", "always")
        back.append(time.monotonic())

    began = time.monotonic()
    redis.kill()
    starts = threading.Timer(1.0, start)
    starts.start()
    status = gateway.post({}).status
    starts.join()
    return status if back[0] - began < PATIENCE / 2 else None


def test_a_stop_answers_what_was_taken_and_takes_nothing_more(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(gateway_home)
    gateway = serving("--body-timeout", "10m")
    host, port = gateway.address.split(":")
    # Given requests whose bodies are half sent
    connections = [http.client.HTTPConnection(host, int(port), timeout=600) for _ in range(5)]
    for connection in connections:
        connection.putrequest("POST", "/ingest/p/web")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "2")
        connection.endheaders(b"{")
    until(lambda: gateway.request("GET", "/healthz").status == 200)
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGTERM)

    # When it was asked to stop, it takes no connection any more
    def refuses() -> bool:
        try:
            gateway.request("GET", "/healthz")
        except OSError:
            return True
        return False

    until(refuses)
    for connection in connections:
        connection.send(b"}")
    # Then each is answered, and is there
    assert [connection.getresponse().status for connection in connections] == [202] * 5
    for connection in connections:
        connection.close()
    assert gateway.process.wait(240) == 0
    assert len(stored()) == 5


def test_a_new_pipeline_file_is_served_without_a_restart(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    write_pipeline(gateway_home)
    gateway = serving()
    assert gateway.post({}, path="/ingest/q/web").status == 404
    write_pipeline(gateway_home, "q")
    until(lambda: gateway.post({}, path="/ingest/q/web").status == 202)
    assert len(stored("q")) == 1
    (gateway_home / "include" / "pipelines" / "q.yaml").unlink()
    until(lambda: gateway.post({}, path="/ingest/q/web").status == 404)
    assert gateway.post({}).status == 202


def test_a_journal_that_cannot_be_made_keeps_no_other_source_back(gateway_home: Path, serving: Serving) -> None:
    write_pipeline(gateway_home)
    gateway = serving()
    # Given a source whose journal has no place
    blocked = gateway_home / "blocked"
    blocked.write_text("a file")
    write_pipeline(gateway_home, "a")
    file = gateway_home / "include" / "pipelines" / "a.yaml"
    spooled = file.read_text().replace("plugin: gateway\n", "plugin: gateway\n        durability: spool\n")
    file.write_text(spooled.replace("  - id: a\n", f"  - id: a\n    spool: {{path: {blocked}}}\n"))
    until(lambda: "source web of pipeline a is not served" in gateway.log.read_text())
    # When there is another one
    write_pipeline(gateway_home, "b")
    # Then it is served, and the first one once it can be
    until(lambda: gateway.post({"n": 1}, path="/ingest/b/web").status == 202)
    assert gateway.post({"n": 1}, path="/ingest/a/web").status == 404
    blocked.unlink()
    until(lambda: gateway.post({"n": 1}, path="/ingest/a/web").status == 202)


@pytest.mark.parametrize("name", ["q.yaml", "q.yml", "Q.YML", "q.Yaml"])
def test_a_look_at_the_files_sees_each_that_is_read(
    gateway_home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # Given that tokens are not looked up again meanwhile, which would look at all files as well
    monkeypatch.setattr(serve, "REFRESH", 86_400.0)
    write_pipeline(gateway_home)
    service = serve.Service(settings(), serve.Options("127.0.0.1", 0))
    look = service._find
    assert [found.pipeline for found in look() or []] == ["p"]
    assert look() is None
    folder = gateway_home / "include" / "pipelines"
    # When a file comes under a name that is read for pipelines, or goes, then it is seen
    write_pipeline(gateway_home, "q")
    (folder / "q.yaml").rename(folder / name)
    assert sorted(found.pipeline for found in look() or []) == ["p", "q"]
    (folder / name).unlink()
    assert [found.pipeline for found in look() or []] == ["p"]
    # And what is none is no reason to look again, nor is a link to nothing one not to
    (folder / "q.test.yaml").write_text("tests: []")
    (folder / "gone.yaml").symlink_to("nowhere")
    assert look() is None
    service.client.close()


def test_other_methods_and_paths_are_refused_with_what_to_do(gateway_home: Path, serving: Serving) -> None:
    write_pipeline(gateway_home)
    gateway = serving()
    answer = gateway.request("PUT", "/ingest/p/web")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert "/ingest/<pipeline>/<connector>" in gateway.request("POST", "/").problem["detail"]


def test_it_can_wait_for_its_first_source(gateway_home: Path, serving: Serving) -> None:
    # Given no pipeline, when it is told to begin all the same, then it is ready and serves nothing
    gateway = serving("--wait-for-sources")
    assert gateway.request("GET", "/readyz").status == 200
    assert gateway.post({"n": 1}).status == 404
    # When a pipeline file comes, then its source is served without a restart
    write_pipeline(gateway_home)
    until(lambda: gateway.post({"n": 1}).status == 202)
    assert gateway.stop() == 0
