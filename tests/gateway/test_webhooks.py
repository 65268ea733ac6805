"""Signed webhooks as their services send them, to a real gateway: what becomes an event, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from standardwebhooks import Webhook

from conduit_tasks.gateway.event import unpack
from conduit_tasks.gateway.store import IngestStore
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.redis_client.connection import Client
from tests.gateway.conftest import Answer, GatewayProcess, event, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]

NEW, OLD = ("whsec_" + base64.b64encode(text).decode() for text in (b"the new secret of this hook", b"the old secret"))
FORM = "application/x-www-form-urlencoded"


def hooks(home: Path, scheme: str, secret: str = "env:HOOK", **more: str) -> None:
    write_pipeline(home, auth="none", verify=scheme, **{"verify.secret": secret, **more})


def sent(gateway: GatewayProcess, body: bytes, type: str = "application/json", **headers: str) -> Answer:
    return gateway.post(body, type=type, **headers)


def standard(body: bytes, id: str, *secrets: str, at: float | None = None) -> dict[str, str]:
    moment = datetime.fromtimestamp(int(time.time() if at is None else at), UTC)
    signed = " ".join(Webhook(secret).sign(id, moment, body.decode()) for secret in secrets)
    return {"webhook_id": id, "webhook_timestamp": str(int(moment.timestamp())), "webhook_signature": signed}


def github(body: bytes, secret: str = "s", **more: str) -> dict[str, str]:
    return {"x_hub_signature_256": f"sha256={hmac.new(secret.encode(), body, 'sha256').hexdigest()}", **more}


def slack(body: bytes, secret: str = "s", at: float | None = None) -> dict[str, str]:
    seconds = str(int(time.time() if at is None else at))
    code = hmac.new(secret.encode(), f"v0:{seconds}:".encode() + body, "sha256").hexdigest()
    return {"x_slack_request_timestamp": seconds, "x_slack_signature": f"v0={code}"}


def stripe(body: bytes, secret: str = "s", at: float | None = None) -> dict[str, str]:
    seconds = str(int(time.time() if at is None else at))
    code = hmac.new(secret.encode(), f"{seconds}.".encode() + body, "sha256").hexdigest()
    return {"stripe_signature": f"t={seconds},v1={code}"}


def named(stored: bytes) -> tuple[str | None, str | None, Any]:
    _, metadata, data = unpack(stored)
    return metadata.get("cloudevents.id"), metadata.get("cloudevents.type"), json.loads(data or b"null")


def test_github_s_requests_become_events_and_its_ping_is_answered(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    hooks(gateway_home, "github")
    gateway = serving(HOOK="s")
    body = json.dumps({"action": "opened", "number": 7}).encode()
    ping = b'{"zen": "Keep it logically awesome.", "hook_id": 1}'
    assert sent(gateway, ping, x_github_event="ping", **github(ping)).status == 200
    # A ping has to be signed as well: the answer to it says whether the secret is right
    assert sent(gateway, ping, x_github_event="ping", **github(ping, "x")).status == 401
    delivery = {"x_github_event": "pull_request", "x_github_delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    assert sent(gateway, body, **delivery, **github(body)).status == 202
    # As its older hooks send it, in a form
    form = urlencode({"payload": '{"ref": "main"}'}).encode()
    assert sent(gateway, form, type=FORM, x_github_event="push", **github(form)).status == 202
    assert [named(e) for e in stored()] == [
        (delivery["x_github_delivery"], "pull_request", json.loads(body)),
        (None, "push", {"ref": "main"}),
    ]
    assert all(unpack(e)[0] for e in stored())


def test_slack_s_requests_become_events_and_its_challenge_is_answered(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    hooks(gateway_home, "slack")
    gateway = serving(HOOK="s")
    random = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
    challenge = json.dumps({"token": "t", "challenge": random, "type": "url_verification"}).encode()
    answer = sent(gateway, challenge, **slack(challenge))
    assert (answer.status, answer.body.decode()) == (200, random)
    assert answer.headers["content-type"].startswith("text/plain")
    assert sent(gateway, challenge, **slack(challenge, "x")).status == 401
    assert stored() == []
    message = (
        b'{"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention", "text": "url_verification"}}'
    )
    command = urlencode({"command": "/weather", "text": "94070 ü", "trigger_id": "13345224609.738"}).encode()
    click = urlencode({"payload": '{"type": "block_actions", "trigger_id": "T1"}'}).encode()
    # Slack shows its users an error for any other answer than 200
    assert sent(gateway, message, **slack(message)).status == 200
    for form in (command, click):
        assert sent(gateway, form, type=FORM, **slack(form)).status == 200
    assert [named(e) for e in stored()] == [
        ("Ev1", "app_mention", json.loads(message)),
        ("13345224609.738", "/weather", {"command": "/weather", "text": "94070 ü", "trigger_id": "13345224609.738"}),
        ("T1", "block_actions", {"type": "block_actions", "trigger_id": "T1"}),
    ]


def test_stripe_s_requests_become_events(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    hooks(gateway_home, "stripe", "env:HOOK, env:HOOK_OLD")
    gateway = serving(HOOK="whsec_new", HOOK_OLD="whsec_old")
    for n, secret in enumerate(("whsec_new", "whsec_old")):
        body = json.dumps({"id": f"evt_{n}", "object": "event", "type": "charge.succeeded"}).encode()
        assert sent(gateway, body, type="application/json; charset=utf-8", **stripe(body, secret)).status == 202
    assert [named(e)[:2] for e in stored()] == [("evt_0", "charge.succeeded"), ("evt_1", "charge.succeeded")]
    old = sent(gateway, body, **stripe(body, at=time.time() - 400, secret="whsec_new"))
    assert (old.status, old.problem["header"]) == (401, "stripe-signature")
    assert "behind this machine's clock" in old.problem["detail"]


def test_standard_webhooks_by_the_public_library_of_any_of_two_secrets_also_around_cloudevents(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    hooks(gateway_home, "standard-webhooks", "env:HOOK, env:HOOK_OLD")
    gateway = serving(HOOK=NEW, HOOK_OLD=OLD)
    for n, secrets in enumerate([(NEW,), (OLD,), (OLD, NEW)]):
        body = json.dumps({"type": "user.created", "n": n}).encode()
        assert sent(gateway, body, **standard(body, f"msg_{n}", *secrets)).status == 202
    whole = json.dumps(event(9)).encode()
    assert sent(gateway, whole, type="application/cloudevents+json", **standard(whole, "msg_9", NEW)).status == 202
    assert [named(e)[:2] for e in stored()] == [
        ("msg_0", "user.created"),
        ("msg_1", "user.created"),
        ("msg_2", "user.created"),
        ("e9", "made"),
    ]
    foreign = "whsec_" + base64.b64encode(b"somebody else's secret").decode()
    answer = sent(gateway, body, **standard(body, "msg_x", foreign))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Signature")
    assert answer.problem["title"] == "Not verified"
    assert answer.problem["header"] == "webhook-signature"
    assert len(stored()) == 4


def test_a_request_that_came_before_is_refused_by_every_gateway_also_after_a_restart_and_kept_once(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    hooks(gateway_home, "standard-webhooks")
    one, other = serving(HOOK=NEW), serving(HOOK=NEW)
    body, then = b'{"n": 1}', time.time()
    headers = standard(body, "msg_1", NEW, at=then)
    assert sent(one, body, **headers).status == 202
    for gateway in (one, other):
        again = sent(gateway, body, **headers)
        assert (again.status, again.problem["title"]) == (409, "Replayed")
    one.kill()
    assert sent(serving(HOOK=NEW), body, **headers).status == 409
    # The same message signed again is one whose answer was lost: it is answered, and not stored again
    assert sent(other, body, **standard(body, "msg_1", NEW, at=then + 1)).status == 202
    assert len(stored()) == 1
    # Another message under the same id is another message
    assert sent(other, b'{"n": 2}', **standard(b'{"n": 2}', "msg_1", NEW)).status == 202
    assert len(stored()) == 2
    # What was not stored was not taken
    assert sent(other, b"{", **standard(b"{", "msg_2", NEW, at=then)).status == 400
    assert sent(other, b"{", **standard(b"{", "msg_2", NEW, at=then)).status == 400


def test_of_many_that_come_at_once_each_is_stored_once(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    hooks(gateway_home, "github")
    gateways = [serving(HOOK="s"), serving(HOOK="s")]
    bodies = [json.dumps({"n": n}).encode() for n in range(30)]

    def send(n: int) -> int:
        body = bodies[n % len(bodies)]
        return sent(gateways[n % 2 if n < 120 else (n + 1) % 2], body, **github(body)).status

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(send, range(240)))
    assert sorted(set(answers)) == [202, 409]
    assert answers.count(202) == 30
    assert sorted(named(e)[2]["n"] for e in stored()) == list(range(30))


@pytest.mark.parametrize("durability", ["redis", "spool"])
def test_where_replays_are_taken_or_with_a_journal(
    gateway_home: Path, serving: Serving, stored: Stored, durability: str
) -> None:
    hooks(
        gateway_home,
        "hmac",
        **{"verify.header": "X-Sig", "verify.replays": "take" if durability == "redis" else "refuse"},
    )
    file = gateway_home / "include" / "pipelines" / "p.yaml"
    file.write_text(
        file.read_text().replace("plugin: gateway\n", f"plugin: gateway\n        durability: {durability}\n")
    )
    gateway = serving(HOOK="s")
    code = hmac.new(b"s", b"{}", "sha256").hexdigest()
    again = 202 if durability == "redis" else 409
    assert [sent(gateway, b"{}", x_sig=code).status for _ in range(3)] == [202, again, again]
    assert len(stored()) == (3 if durability == "redis" else 1)


def test_what_is_remembered_is_bounded_and_forgotten_in_time(
    gateway_home: Path, serving: Serving, stored: Stored, client: Client
) -> None:
    hooks(gateway_home, "github", **{"verify.remember": "2", "verify.tolerance": "1s"})
    gateway = serving(HOOK="s")

    def send(n: int) -> Answer:
        body = b"[%d]" % n
        return sent(gateway, body, **github(body))

    assert [send(n).status for n in (1, 2)] == [202, 202]
    full = send(3)
    assert (full.status, full.problem["title"], full.headers["retry-after"]) == (429, "Too many to remember", "10")
    seen = IngestStore("p", "web", client).keys.ingest_seen("web")
    assert client.zcard(seen) == 2
    assert 0 < client.ttl(seen) <= 2 + 120
    # When their time is over, they make room and are no replays any more
    for mark in client.zrange(seen, 0, -1):
        client.zincrby(seen, -3_600, mark)
    assert [send(n).status for n in (3, 1, 3)] == [202, 202, 409]
    assert client.zcard(seen) == 2
    assert len(stored()) == 4


def test_a_signature_comes_after_the_limits_and_before_anything_is_parsed(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    hooks(gateway_home, "github", **{"max-request-size": "1KiB", "backlog.bytes": "1MiB"})
    gateway = serving(HOOK="top-secret-word")
    assert sent(gateway, b"x" * 2_000).status == 413
    unsigned = sent(gateway, b"{")
    assert (unsigned.status, unsigned.problem["header"]) == (401, "x-hub-signature-256")
    assert unsigned.problem["detail"].startswith("the header x-hub-signature-256 is missing")
    wrong = sent(gateway, b"{", **github(b"{", "guess"))
    assert wrong.status == 401
    right = github(b"{", "top-secret-word")
    assert right["x_hub_signature_256"][7:] not in wrong.body.decode()
    assert sent(gateway, b"{", **right).status == 400
    # The bytes count, not what they mean
    assert sent(gateway, b'{ "a":1}', **github(b'{"a": 1}', "top-secret-word")).status == 401
    assert stored() == []
    # Slow ones are limited as all others are
    hooks(gateway_home, "github", **{"rate-limit": "1/s"})
    until(lambda: sent(gateway, b"{}").status == 429)
    gateway.stop()
    said = gateway.log.read_text()
    assert "top-secret-word" not in said
    assert right["x_hub_signature_256"][7:] not in said


def test_a_token_and_a_signature_are_both_asked_for(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    write_pipeline(gateway_home, auth="env:WEB_TOKEN", verify="github", **{"verify.secret": "env:HOOK"})
    gateway = serving(HOOK="s")
    token = {"authorization": "Bearer correct-horse"}
    assert sent(gateway, b"{}", **github(b"{}")).headers["www-authenticate"] == "Bearer"
    assert sent(gateway, b"{}", **token).headers["www-authenticate"] == "Signature"
    assert sent(gateway, b"{}", **token, **github(b"{}")).status == 202
    assert len(stored()) == 1


def test_secrets_are_rotated_in_a_running_gateway(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    body = [json.dumps({"n": n}).encode() for n in range(6)]
    hooks(gateway_home, "github", "env:HOOK")
    gateway = serving(HOOK="old", HOOK_NEW="new")
    assert sent(gateway, body[0], **github(body[0], "old")).status == 202
    assert sent(gateway, body[1], **github(body[1], "new")).status == 401
    hooks(gateway_home, "github", "env:HOOK_NEW, env:HOOK")
    until(lambda: sent(gateway, body[1], **github(body[1], "new")).status == 202)
    assert sent(gateway, body[2], **github(body[2], "old")).status == 202
    # A request is a replay by whichever secret
    assert sent(gateway, body[2], **github(body[2], "new")).status == 409
    hooks(gateway_home, "github", "env:HOOK_NEW")
    until(lambda: sent(gateway, body[3], **github(body[3], "old")).status == 401)
    assert sent(gateway, body[4], **github(body[4], "new")).status == 202
    assert sent(gateway, body[5], **github(body[5], "old")).status == 401
    assert [named(e)[2]["n"] for e in stored() if named(e)[2]["n"] != 3] == [0, 1, 2, 4]


def test_signed_events_of_a_pipe_pass_in_their_order_and_a_replay_is_told_from_a_repeat(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    write_pipeline(
        gateway_home,
        auth="none",
        verify="standard-webhooks",
        pipe="continuous",
        **{"verify.secret": "env:HOOK", "pipe.wait": "100ms"},
    )
    gateway = serving(HOOK=NEW)

    def send(n: int, at: float, id: str | None = None) -> int:
        body = json.dumps(event(n, sequence=str(n))).encode()
        return sent(
            gateway, body, type="application/cloudevents+json", **standard(body, id or f"m{n}", NEW, at=at)
        ).status

    now = time.time()
    assert send(1, now) == 202
    # One that came too early was not taken: it may come again as it is
    assert send(3, now) == 409
    assert send(2, now) == 202
    assert send(3, now) == 202
    assert [send(3, now), send(3, now + 1), send(3, now + 1, "another")] == [409, 202, 202]
    assert len(stored()) == 3


def test_a_source_whose_secret_cannot_be_read_is_not_served_and_the_log_names_its_place(
    gateway_home: Path, serving: Serving, fsyncing: RedisServer
) -> None:
    hooks(gateway_home, "standard-webhooks")
    write_pipeline(gateway_home, "other", auth="none")
    gateway = serving(HOOK="not base64 at all!")
    assert sent(gateway, b"{}").status == 404
    gateway.stop()
    said = gateway.log.read_text()
    assert "what the environment variable HOOK holds is no secret of Standard Webhooks" in said
    assert "base64 at all" not in said


def test_findings_are_at_their_place(gateway_home: Path) -> None:
    hooks(gateway_home, "hmac", "hunter2", **{"verify.encoding": "hx", "verify.tolerance": "soon"})
    found = load_folder(gateway_home / "include" / "pipelines", plugins=True).errors
    assert sorted(f.message.split("'")[1] for f in found) == ["verify.encoding", "verify.secret", "verify.tolerance"]
    assert all((f.code, f.line, bool(f.column)) == ("E205", 9, True) for f in found)
    assert not any("hunter2" in str(f) for f in found)


def test_a_body_is_hashed_once_for_its_signature(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    """Given a large body, then it is taken whole: what is signed is what is stored."""
    hooks(gateway_home, "github", **{"max-request-size": "4MiB"})
    gateway = serving(HOOK="s")
    body = b'{"a": "' + b"x" * (3 << 20) + b'"}'
    assert sent(gateway, body, **github(body)).status == 202
    assert hashlib.sha256(unpack(stored()[0])[2] or b"").digest() == hashlib.sha256(body).digest()
