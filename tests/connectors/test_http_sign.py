"""`http` with `sign`: what the public specifications sign is what we sign, at every attempt, by every secret."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import redis
from aiohttp import web
from standardwebhooks import Webhook
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.connectors.http import sign
from conduit_tasks.connectors.http.connector import BODIES, HttpDestination
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Delivery
from tests.connectors.test_http import RECORD, answering, exchange
from tests.delivery.fakes import FakePort, work_of
from tests.micro_batch.harness import run_once, write_pipeline
from tests.processors.answering import Asked, Reply
from tests.processors.answering import answering as receiving
from tests.redis_server import RedisServer

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, just as long").decode()
NOW = 1_700_000_000


def signer(scheme: str, secret: str, **more: str) -> sign.Signer:
    given = {f"sign.{name.replace('_', '-')}": value for name, value in more.items()}
    destination = HttpDestination({"url": "http://h/", "sign": scheme, "sign.secret": secret, **given})
    found = destination._signer
    assert found is not None
    found.open()
    return found


def lines(by: sign.Signer, id: str, body: bytes, now: float = NOW) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in by.lines(id, body, now).splitlines())


def test_the_example_of_standard_webhooks_is_signed_as_it_stands_there() -> None:
    by = signer("standard-webhooks", WHSEC)
    assert lines(by, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1_614_265_330.9) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_the_example_of_github_s_documents_is_signed_as_it_stands_there() -> None:
    by = signer(
        "hmac",
        "It's a Secret to Everybody",
        header="X-Hub-Signature-256",
        prefix="sha256=",
        timestamp_header="",
    )
    assert lines(by, "any", b"Hello, World!") == {
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    }


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_every_form_of_the_plain_scheme(algorithm: str, encoding: str) -> None:
    by = signer("hmac", "k, with a comma", header="X-Sig", algorithm=algorithm, encoding=encoding, timestamp_header="T")
    digest = hmac.new(b"k, with a comma", b"%d.\x00\xff" % NOW, algorithm)
    text = digest.hexdigest() if encoding == "hex" else base64.b64encode(digest.digest()).decode()
    assert lines(by, "any", b"\x00\xff") == {"x-sig": text, "t": str(NOW)}


def test_each_of_several_plain_secrets_signs_in_the_form_of_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_HOOK", "n, ew")
    monkeypatch.setenv("OLD_HOOK", "old")
    by = signer("hmac", "env:NEW_HOOK, env:OLD_HOOK", prefix="v1=", header="X-Sig", timestamp_header="T")
    new, old = (hmac.new(key, b"%d.body" % NOW, "sha256").hexdigest() for key in (b"n, ew", b"old"))
    assert lines(by, "any", b"body") == {"x-sig": f"v1={new},v1={old}", "t": str(NOW)}


@pytest.mark.parametrize("body", BODIES)
def test_the_public_library_takes_each_request_by_either_secret(body: str) -> None:
    raw = Record(b"43", after=b"raw \xff") if body == "payload" else Record(b"43", after={"n": "é"})
    settings = {"body": body, "sign": "standard-webhooks", "sign.secret": f"{WHSEC}, {OTHER}", "batch.delay": "1ms"}
    outcomes, got = exchange(settings, answering(200), RECORD, raw)
    assert [o.kind for o in outcomes] == ["delivered"] * 2
    ids = []
    for _, headers, data in got:
        assert len(headers["webhook-signature"].split(" ")) == 2
        if b"\xff" not in data:
            # The library takes text
            for secret in (WHSEC, OTHER):
                assert Webhook(secret).verify(data, dict(headers)) is not None
        ids.append(headers["webhook-id"])
    if body != "cloudevents-batched":
        assert ids == [RECORD.id, raw.id]


@pytest.mark.proves("T8")
def test_every_attempt_has_the_same_id_and_a_later_time() -> None:
    """Given a receiver whose answers are lost, as fast as it is asked again: no two requests are the same."""
    port, left, seen = FakePort(3, [0, 1, 2]), [2, 2, 2], []

    async def answer(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        Webhook(WHSEC).verify(body, dict(request.headers))
        seen.append((request.headers["webhook-id"], int(request.headers["webhook-timestamp"])))
        n = int(body.split(b":")[1].rstrip(b"}"))
        left[n] -= 1
        if left[n] >= 0:
            assert request.transport is not None
            request.transport.abort()
        return web.Response()

    async def run() -> None:
        runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        destination = HttpDestination({"url": url, "sign": "standard-webhooks", "sign.secret": WHSEC})
        options = Delivery(retry=5, backoff_delay=0.001, backoff_policy="constant")
        try:
            await asyncio.to_thread(deliver, work_of(port), destination, port, options)
        finally:
            await runner.cleanup()

    asyncio.run(run())
    assert port.complete
    assert not port.stored
    assert len(seen) == len(set(seen)) == 9
    for id in {id for id, _ in seen}:
        times = [at for each, at in seen if each == id]
        assert times == sorted(times)
        assert times[-1] - times[0] <= 60


def test_what_is_remembered_of_earlier_attempts_is_bounded_and_a_time_is_at_most_a_minute_ahead() -> None:
    by = signer("standard-webhooks", WHSEC)
    for n in range(3 * sign.MANY):
        by.lines(f"m{n}", b"", NOW)
    assert lines(by, "m0", b"", NOW)["webhook-timestamp"] == str(NOW + 1)
    by.lines("next", b"", NOW + 2)
    assert len(by._signed) < 10
    times = [int(lines(by, "again", b"", NOW + 2)["webhook-timestamp"]) for _ in range(100)]
    assert times[:3] == [NOW + 2, NOW + 3, NOW + 4]
    assert times[-1] == NOW + 2 + sign.AHEAD


def test_a_secret_of_the_environment_is_read_where_the_destination_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"url": "http://h/", "sign": "standard-webhooks", "sign.secret": "env:NEW_HOOK, env:OLD_HOOK"}
    destination = pickle.loads(pickle.dumps(HttpDestination(settings)))
    monkeypatch.setenv("NEW_HOOK", f" {WHSEC} ")
    with pytest.raises(ConfigError, match="the environment variable OLD_HOOK is missing or empty where this"):
        asyncio.run(destination.open(1.0))
    monkeypatch.setenv("OLD_HOOK", "no base64 SECRET!")
    with pytest.raises(ConfigError, match="what the environment variable OLD_HOOK holds is no secret of") as raised:
        asyncio.run(destination.open(1.0))
    assert "SECRET" not in str(raised.value)
    monkeypatch.setenv("OLD_HOOK", OTHER)
    asyncio.run(destination.open(1.0))
    asyncio.run(destination.close())
    codes = lines(destination._signer, "m", b"{}")["webhook-signature"].split(" ")
    assert codes == [lines(signer("standard-webhooks", s), "m", b"{}")["webhook-signature"] for s in (WHSEC, OTHER)]


def test_after_a_token_was_refused_the_second_request_is_signed_for_itself() -> None:
    times: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path == "/token":
            return web.json_response({"access_token": f"t{len(times)}", "expires_in": 3600})
        await request.read()
        times.append(request.headers["webhook-timestamp"])
        return web.Response(status=401 if len(times) == 1 else 200)

    async def run() -> Any:
        runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        oauth = {"token-url": f"{root}/token", "client-id": "a", "client-secret": "b"}
        more = {f"auth.oauth2.{name}": value for name, value in oauth.items()}
        destination = HttpDestination({"url": root, "sign": "standard-webhooks", "sign.secret": WHSEC, **more})
        await destination.open(60.0)
        try:
            return await destination.send(RECORD)
        finally:
            await destination.close()
            await runner.cleanup()

    assert asyncio.run(run()).kind == "delivered"
    assert len(set(times)) == 2


STANDARD = {"sign": "standard-webhooks", "sign.secret": WHSEC}
HMAC = {"sign": "hmac", "sign.secret": "SECRET"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sign": "github"}, "option 'sign' cannot be 'github'; it is one of standard-webhooks, hmac"),
        ({"sign": "hmac"}, "option 'sign' needs sign.secret"),
        ({"sign": "standard-webhooks", "sign.secret": " , "}, "option 'sign' needs sign.secret"),
        ({"sign.secret": "SECRET"}, "option 'sign.secret' has no meaning without sign: standard-webhooks or hmac"),
        ({**STANDARD, "sign.header": "X"}, "option 'sign.header' has no meaning without sign: hmac"),
        ({**STANDARD, "sign.secret": "SECRET!"}, "option 'sign.secret' holds is no secret of Standard Webhooks"),
        ({**STANDARD, "sign.secret": "env:"}, "option 'sign.secret': env: names no environment variable"),
        ({**STANDARD, "sign.secret": "connection:SECRET"}, "connection: is for sources of the gateway"),
        ({**STANDARD, "headers.Webhook-Id": "1"}, "option 'headers.Webhook-Id' is a header that sign writes"),
        ({**STANDARD, "idempotency-header": "webhook-id"}, "webhook-id is written by something else"),
        ({**HMAC, "sign.header": "a b"}, "option 'sign.header' is no name of a header"),
        ({**HMAC, "sign.header": ""}, "option 'sign.header' is empty"),
        ({**HMAC, "sign.header": "Authorization"}, "authorization is written by something else"),
        ({**HMAC, "sign.timestamp-header": "X-Signature"}, "names the header of the signature"),
        ({**HMAC, "sign.timestamp-header": "Content-Length"}, "content-length is written by something else"),
        ({**HMAC, "headers.X-Signature": "1"}, "option 'headers.X-Signature' is a header that sign writes"),
        ({**HMAC, "sign.algorithm": "md5"}, "option 'sign.algorithm' cannot be"),
        ({**HMAC, "sign.encoding": "hx"}, "option 'sign.encoding' cannot be"),
        ({**HMAC, "sign.prefix": "a\r\nb"}, "option 'sign.prefix' is no text"),
        ({**HMAC, "sign.secret": "env:A, SECRET"}, "with hmac each of several secrets is env:NAME"),
        ({**HMAC, "sign.secret": "env:A,env:"}, "option 'sign.secret': env: names no environment variable"),
        (
            {**HMAC, "sign.secret": "env:A, env:B", "sign.prefix": "v1,"},
            "option 'sign.prefix': the comma stands between the signatures",
        ),
    ],
)
def test_a_wrong_setting_is_named_and_shows_no_secret(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        HttpDestination({"url": "http://h/", **settings})
    assert said in str(raised.value)
    assert "SECRET" not in str(raised.value)
    assert WHSEC not in str(raised.value)


def test_no_representation_shows_a_secret() -> None:
    for secret in (WHSEC, "plain-secret-word"):
        by = signer("standard-webhooks" if secret == WHSEC else "hmac", secret)
        assert secret not in f"{by!r} {by.lines('m', b'{}')}"


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.jsonl, format: jsonl, settle: 0s}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL", sign: standard-webhooks, sign.secret: "${HOOK_SECRET}"}
"""


def test_a_secret_is_in_no_state_no_ledger_no_dead_letter_and_no_log(
    home: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a receiver that refuses what it is sent, and says so
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HOOK_SECRET", WHSEC)
    (home / "in.jsonl").write_text('{"n": 1}\n')
    got: list[Any] = []

    def reply(asked: Asked) -> Reply:
        got.append(asked)
        return 400, {"error": "no"}, {}

    with receiving(reply) as server:
        write_pipeline(home, "p", PIPELINE.replace("URL", server.url))
        said = str(run_once("p")) + CliRunner().invoke(app, ["explain", "p"]).output
    assert len(got) == 1
    # Then its secret is nowhere in what is stored or said
    client = redis.Redis(unix_socket_path=redis_server.url.removeprefix("unix://"), decode_responses=True)
    state = {key: client.hgetall(key) for key in client.scan_iter("*") if client.type(key) == "hash"}
    client.close()
    files = [path for path in home.rglob("*") if path.is_file()]
    assert state
    assert any("dead" in str(path) for path in files)
    bare = WHSEC.removeprefix("whsec_")
    assert bare not in said + json.dumps(state) + caplog.text
    assert not [path for path in files if bare.encode() in path.read_bytes()]
