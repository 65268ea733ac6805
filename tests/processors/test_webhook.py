"""`webhook.http` against a real server."""

from __future__ import annotations

import gzip
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from conduit_tasks.connectors.http import origins
from conduit_tasks.connectors.http.client import Client
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors import http_calls
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.registry import build
from conduit_tasks.topology import Processor
from tests.processors.answering import Asked, Reply, answering
from tests.processors.conftest import one, record, run, step


def hook(url: str, **settings: str) -> Processor:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return step("webhook.http", **{"request.url": url, "backoffRetry.min": "1ms", **named})


def test_the_request_is_made_of_templates_and_the_answer_goes_into_the_record() -> None:
    with answering(lambda asked: (200, b"\xffanswer")) as server:
        out = one(
            record({"id": 7}, key=b"k"),
            hook(
                server.url + "/x/{{ .Payload.After.id }}?q={{ .Metadata.kind }} b",
                request__method="POST",
                request__body='{"id": {{ .Payload.After.id }}}',
                headers__X_Team="data",
                response__status=".Metadata.status",
            ),
        )
    [asked] = server.asked
    assert (asked.method, asked.path, asked.json) == (
        "POST",
        "/x/7?q=flight+b",
        {"id": 7},
    ) or asked.path == "/x/7?q=flight%20b"
    assert (asked.headers["x-team"], asked.headers["content-type"]) == ("data", "application/json")
    assert (out.after, out.metadata["status"]) == (b"\xffanswer", "200")


def test_by_default_it_is_a_get_without_a_body() -> None:
    with answering(lambda asked: (200, {"a": 1})) as server:
        out = one(
            record({"id": 7}), hook(server.url, response__body=".Payload.After.got", request__contentType="text/plain")
        )
    [asked] = server.asked
    assert (asked.method, asked.body, asked.headers["content-type"]) == ("GET", b"", "text/plain")
    assert out.after == {"id": 7, "got": '{"a": 1}'}


@pytest.mark.parametrize("status", [201, 304, 400, 404, 429, 499])
def test_what_is_below_500_is_an_answer(status: int) -> None:
    with answering(lambda asked: (status, b"")) as server:
        out = one(record({}), hook(server.url, backoffRetry__count="5", response__status=".Metadata.status"))
    assert (out.metadata["status"], len(server.asked)) == (str(status), 1)


def test_500_and_above_is_repeated_and_then_the_records_error() -> None:
    with answering(lambda asked: (500 + len(server.asked), b"no")) as server:
        failed = run(record({"x": 1}), hook(server.url, backoffRetry__count="2"))
        assert (len(server.asked), failed.error) == (3, "webhook.http: the answer is 503: no, 3 times")
        server.reply = lambda asked: (200 if len(server.asked) == 6 else 500, b"ok")
        assert one(record({}), hook(server.url, backoffRetry__count="2")).after == b"ok"
        server.reply = lambda asked: (500, b"")
        assert len(server.asked) == 6
        assert run(record({}), hook(server.url)).error
        assert len(server.asked) == 7


def test_no_answer_and_a_late_one_are_failures() -> None:
    late = threading.Event()

    def reply(asked: Asked) -> Reply:
        late.wait(120)
        return 200, b""

    with answering(reply) as server:
        result = run(record({}), hook(server.url, timeout="100ms"))
        late.set()
    assert "no answer from 127.0.0.1 within 0.1 s" in (result.error or "")
    assert "no answer" in (run(record({}), hook(server.url)).error or "")


def test_workers_wait_together_and_order_stays() -> None:
    # Given a server that answers only once four requests are there
    together = threading.Barrier(4)

    def reply(asked: Asked) -> Reply:
        together.wait(120)
        return 200, asked.path.encode()

    with answering(reply) as server:
        settings = {"request.url": server.url + "/{{ .Payload.After.n }}"}
        chain = Chain([Processor("hook", "webhook.http", settings, None, 4)])
        results = chain.run([record({"n": n}) for n in range(12)])
        chain.close()
    # Then the answers stand in the records' order
    assert [r.records[0].after for r in results] == [b"/%d" % n for n in range(12)]


def test_one_record_that_fails_leaves_the_others_alone() -> None:
    with answering(lambda asked: (500 if asked.path == "/1" else 200, b"ok")) as server:
        chain = Chain([hook(server.url + "/{{ .Payload.After.n }}")])
        results = chain.run([record({"n": n}) for n in range(3)])
        chain.close()
    assert [r.error is None for r in results] == [True, False, True]


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "metadata.google.internal"])
def test_link_local_addresses_are_refused_written_out_made_by_a_template_and_behind_a_redirect(host: str) -> None:
    with pytest.raises(ConfigError, match="link-local"):
        build(hook(f"http://{host}/"))
    templated = run(record({"host": host}), hook("http://{{ .Payload.After.host }}/"))
    assert "link-local" in (templated.error or "")
    with answering(lambda asked: (302, b"", {"Location": f"http://{host}/x"})) as server:
        assert "link-local" in (run(record({}), hook(server.url)).error or "")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_origin_gets_no_header_that_may_be_a_secret(status: int) -> None:
    secrets = {"headers__X-Api-Key": "k", "headers__Authorization": "Bearer t", "headers__Cookie": "c=1"}
    # Given a server that sends on to another port, which is another origin
    with (
        answering(lambda asked: (200, b"there")) as other,
        answering(lambda asked: (status, b"", {"Location": other.url + "/x"})) as server,
    ):
        made = one(record({}), hook(server.url, request__method="POST", request__body="b", **secrets))
    # Then it is asked, by the method and with the body that the status keeps, and learns no secret
    assert made.after == b"there"
    [asked] = other.asked
    kept = status in (307, 308)
    assert (asked.method, asked.body) == (("POST", b"b") if kept else ("GET", b""))
    assert not {"x-api-key", "authorization", "cookie"} & asked.headers.keys()
    assert ("content-type" in asked.headers) == kept


def test_a_redirect_within_an_origin_keeps_the_headers_but_no_cookie() -> None:
    def reply(asked: Asked) -> Reply:
        return (307, b"", {"Location": "/there", "Set-Cookie": "a=1"}) if asked.path == "/" else (200, b"here")

    with answering(reply) as server:
        assert one(record({}), hook(server.url + "/", **{"headers__X-Key": "k"})).after == b"here"
        assert one(record({}), hook(server.url + "/there", **{"headers__X-Key": "k"})).after == b"here"
    assert [a.headers.get("x-key") for a in server.asked] == ["k", "k", "k"]
    assert not any("cookie" in a.headers for a in server.asked)


@pytest.mark.parametrize(
    ("where", "said"),
    [("/again", "redirects"), ("ftp://127.0.0.1/", "ftp"), ("http://[", "webhook.http"), ("http://", "webhook.http")],
)
def test_a_redirect_that_leads_nowhere_is_the_records_error(where: str, said: str) -> None:
    with answering(lambda asked: (302, b"", {"Location": where})) as server:
        assert said in (run(record({}), hook(server.url)).error or "")


def test_head_is_answered_by_a_head_alone_and_the_next_request_by_its_own_answer() -> None:
    with answering(lambda asked: (200, b"seven")) as server:
        settings = {"request.url": server.url, "response.status": ".Metadata.status"}
        chain = Chain([step("webhook.http", **{**settings, "request.method": "HEAD"})])
        results = chain.run([record({"n": n}) for n in range(3)])
        chain.close()
    assert [(r.records[0].after, r.records[0].metadata["status"]) for r in results] == [(b"", "200")] * 3


def test_an_answer_is_unpacked_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "MOST", 100_000)
    packed = {"Content-Encoding": "gzip"}
    for body, headers, says in [
        (gzip.compress(b"here") + gzip.compress(b" and there"), packed, ""),
        (gzip.compress(b"x" * 100_000), packed, ""),
        (gzip.compress(b"x" * 100_001), packed, "longer than 100,000 bytes"),
        (b"x" * 100_001, {}, "longer than 100,000 bytes"),
        (gzip.compress(b"here")[:-9], packed, "cut off"),
        (b"here", packed, "no gzip"),
        (b"here", {"Content-Encoding": "br"}, "'br', for which it was not asked"),
    ]:
        with answering(lambda asked, body=body, headers=headers: (200, body, headers)) as server:
            result = run(record({}), hook(server.url))
        if says:
            assert says in (result.error or "")
        else:
            assert result.records[0].after == (b"x" * 100_000 if len(body) > 60 else b"here and there")
        assert [asked.headers["accept-encoding"] for asked in server.asked] == ["gzip"]


def test_a_password_of_the_url_is_sent_as_one_and_not_to_another_origin() -> None:
    with (
        answering(lambda asked: (200, b"there")) as other,
        answering(lambda asked: (302, b"", {"Location": other.url})) as server,
    ):
        one(record({}), hook(server.url.replace("//", "//me:secret@")))
    assert server.asked[0].headers["authorization"] == "Basic bWU6c2VjcmV0"
    assert server.asked[0].path == "/"
    assert "authorization" not in other.asked[0].headers


def test_connections_of_many_origins_are_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a limit of two origins, and a template that leads to five, again and again
    monkeypatch.setattr(origins, "MOST", 2)
    closed: list[object] = []
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda self: (closed.append(self), close(self))[1])
    with ExitStack() as servers:
        urls = [servers.enter_context(answering(lambda asked: (200, b"ok"))).url for _ in range(5)]
        chain = Chain([hook("{{ .Payload.After.url }}")])
        results = chain.run([record({"url": url}) for url in urls * 2])
        # Then all are answered, and the connections of all but two are closed
        assert [r.records[0].after for r in results] == [b"ok"] * 10
        assert len(closed) == 8
        chain.close()
    assert len(closed) == 10


def test_redirects_are_followed() -> None:
    def reply(asked: Asked) -> Reply:
        return (302, b"", {"Location": "/there"}) if asked.path == "/" else (200, b"here")

    with answering(reply) as server:
        assert one(record({}), hook(server.url + "/")).after == b"here"


@pytest.mark.parametrize(
    "settings",
    [
        {"request__method": "GET IT"},
        {"response__status": ".Payload.After"},
        {"request__contentType": "a/b", "headers__content-type": "a/b"},
        {"headers__X": "a\r\nb"},
        {"headers__Content-Length": "1"},
        {"headers__Transfer-Encoding": "chunked"},
        {"request__body": "{{ nothing }}"},
        {"backoffRetry__count": "-1"},
        {"backoffRetry__factor": "0"},
        {"backoffRetry__min": "soon"},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(hook("http://127.0.0.1", **settings))


@pytest.mark.parametrize("url", ["ftp://x", "example.org", "http://", "{{ nothing }}"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"request\.url"):
        build(hook(url))
