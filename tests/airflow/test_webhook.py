"""The notifier that posts to an address: signed, with the same id if it is told again, and silent about the address."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.airflow import alerts
from conduit_tasks.airflow.webhook import Webhook
from conduit_tasks.connectors.signatures import standard_key
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.gateway.verify import Unverified, Verifier, scheme_of
from tests.airflow.test_issue_alerts import PIPELINE, end, told
from tests.micro_batch.harness import write_pipeline

__all__ = ["told"]

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Hook:
    """A real server of HTTP that keeps what it was sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answer = 204
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(outer.answer)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/T0/hush-hush"


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_webhook_is_told_signed_and_with_the_same_id_where_it_did_not_take_it(
    home: Path, told: Callable[[], list[str]], hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("HOOK", hook.url)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    arguments = {"url": "${HOOK}", "secret": "${HOOK_SECRET}", "headers": {"x-team": "feeds"}}
    alert = {"notifier": "conduit_tasks.airflow.webhook.Webhook", "arguments": arguments, "issues": True}
    write_pipeline(home, "p", PIPELINE.format(alerts=json.dumps([alert])))
    caplog.set_level("INFO")
    hook.answer = 500
    end("sources.in", "in.txt is gone; put it back")
    hook.answer = 204
    alerts.look("p", "r")
    alerts.look("p", "r")
    assert "answered 500" in caplog.text
    assert "hush-hush" not in caplog.text, "the address is the secret"
    (path, first, _), (_, headers, body) = hook.got
    assert path == "/services/T0/hush-hush"
    assert headers["webhook-id"] == first["webhook-id"]
    assert (headers["x-team"], headers["content-type"]) == ("feeds", "application/json")
    said = json.loads(body)
    assert (said["state"], said["node"], said["count"]) == ("new", "sources.in", 1)
    assert said["error"] == "in.txt is gone; put it back"
    assert said["message"].endswith(": 1 failed attempt at sources.in, SourceError: in.txt is gone; put it back")
    assert said["log"]["task"] == "sources.in"
    _verify(headers, body)


def _verify(headers: dict[str, str], body: bytes) -> None:
    """As a gateway source does."""
    scheme = scheme_of("standard-webhooks", 300, replays=False, plain={})
    gateway = Verifier(scheme, [standard_key(SECRET, "")])
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    gateway.check(gateway.claim(sent), body)
    with pytest.raises(Unverified):
        gateway.check(gateway.claim(sent), body + b" ")


def test_a_webhook_s_body_is_a_template(hook: Hook) -> None:
    Webhook(hook.url, body={"text": "{{ conduit.message }}!"})({"conduit": {"message": "hear"}})
    ((_, headers, body),) = hook.got
    assert json.loads(body) == {"text": "hear!"}
    assert "webhook-signature" not in headers


def test_a_webhook_that_is_wrong_or_away_tells_no_more_than_its_host() -> None:
    for url in ("ftp://h/hush-hush", "hush-hush", "http://[hush-hush/", ""):
        with pytest.raises(ConfigError, match="no address that begins") as found:
            Webhook(url)
        assert "hush" not in str(found.value)
    with pytest.raises(ConfigError, match="the webhook's secret is no secret"):
        Webhook("http://127.0.0.1:1/x", secret="?")({"conduit": {}})
    with pytest.raises(Unavailable, match=r"the webhook at 127.0.0.1 was not reached: ConnectError$"):
        Webhook("http://127.0.0.1:1/hush-hush")({"conduit": {}})
