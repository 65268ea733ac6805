"""Signatures of webhooks: the examples that the schemes' public documents give, and what is said of wrong ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from conduit_tasks.connectors.signatures import key_of
from conduit_tasks.errors import ConfigError
from conduit_tasks.gateway.connector import SCHEMES, GatewaySource
from conduit_tasks.gateway.verify import LEEWAY, Mark, Unverified, Verifier

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret, just as long").decode()
NOW = 1_700_000_000
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack"
    b".com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


def verifier(scheme: str, *secrets: str, **settings: str) -> Verifier:
    more = {f"verify.{name.replace('_', '-')}": value for name, value in settings.items()}
    source = GatewaySource({"verify": scheme, "verify.secret": "env:X", **more})
    assert source.scheme is not None
    return Verifier(source.scheme, [key_of(scheme, secret, "here") for secret in secrets])


def verified(by: Verifier, body: bytes, now: float = NOW, **headers: str) -> list[Mark]:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return by.check(by.claim(raw, now), body, now)


def refused(by: Verifier, body: bytes, now: float = NOW, **headers: str) -> Unverified:
    with pytest.raises(Unverified) as caught:
        verified(by, body, now, **headers)
    return caught.value


def code(secret: str, signed: bytes, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), signed, algorithm).hexdigest()


def test_the_example_of_github_s_documents() -> None:
    github = verifier("github", "It's a Secret to Everybody")
    right = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verified(github, b"Hello, World!", x_hub_signature_256=right)
    assert "another secret, or a body that was changed" in str(
        refused(github, b"Hello, World?", x_hub_signature_256=right)
    )


def test_the_example_of_slack_s_documents() -> None:
    slack = verifier("slack", "8f742231b10e8888abcd99yyyzzz85a5")
    headers = {
        "x_slack_signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x_slack_request_timestamp": "1531420618",
    }
    assert verified(slack, SLACK_BODY, 1_531_420_620, **headers)
    assert refused(slack, SLACK_BODY, 1_531_420_618 + 301, **headers).header == "x-slack-request-timestamp"


def test_the_example_of_standard_webhooks() -> None:
    standard = verifier("standard-webhooks", WHSEC)
    headers = {
        "webhook_id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook_timestamp": "1614265330",
        "webhook_signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    body = b'{"test": 2432232314}'
    assert verified(standard, body, 1_614_265_331, **headers)
    # As a secret is shown without its prefix, too
    assert verified(verifier("standard-webhooks", WHSEC.removeprefix("whsec_")), body, 1_614_265_331, **headers)


def test_what_the_public_library_of_standard_webhooks_signs_is_taken_whatever_else_the_header_holds() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    signed = {s: Webhook(s).sign("msg_1", at, '{"a": "é"}') for s in (WHSEC, OTHER)}
    body = '{"a": "é"}'.encode()
    both = f"{signed[OTHER]} v1a,asymmetric v2,later {signed[WHSEC]}"
    for secrets in ((WHSEC,), (OTHER,), (OTHER, WHSEC)):
        standard = verifier("standard-webhooks", *secrets)
        headers = {"webhook_id": "msg_1", "webhook_timestamp": str(NOW)}
        assert verified(standard, body, webhook_signature=both, **headers)
        only = {s: verifier("standard-webhooks", s) for s in (WHSEC, OTHER)}
        assert refused(only[OTHER], body, webhook_signature=signed[WHSEC], **headers)
        assert refused(standard, body, webhook_signature="v2,later", **headers).header == "webhook-signature"


def test_stripe_signs_the_time_in_its_header_and_may_sign_by_several_secrets() -> None:
    stripe = verifier("stripe", "whsec_new", "whsec_old")
    body = b'{"id": "evt_1"}'
    signed = b"%d.%b" % (NOW, body)
    old, new, foreign = (code(secret, signed) for secret in ("whsec_old", "whsec_new", "whsec_x"))
    for header in (f"t={NOW},v1={old}", f"t={NOW},v1={foreign},v1={new},v0=a", f"v0=b, t={NOW}, v1={new}"):
        assert verified(stripe, body, stripe_signature=header)
    for header, said in {
        f"t={NOW},v1={foreign}": "another secret",
        f"t={NOW},v0={new}": "no signature that begins with v1=",
        f"t={NOW + 1},v1={new}": "another secret",
        f"v1={new}": "no time",
        f"t={NOW},t={NOW},v1={new}": "more than one time",
        f"t=,v1={new}": "no Unix time",
        f"t=1e9,v1={new}": "no Unix time",
        "": "is missing",
    }.items():
        assert said in str(refused(stripe, body, stripe_signature=header)), header


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("prefix", ["", "sig="])
@pytest.mark.parametrize("timed", [False, True])
def test_every_form_of_the_plain_scheme(algorithm: str, encoding: str, prefix: str, timed: bool) -> None:
    more = {"timestamp_header": "X-At"} if timed else {}
    plain = verifier(
        "hmac", "k", header="X-Sig", algorithm=algorithm, encoding=encoding, prefix=prefix, tolerance="10s", **more
    )
    body, at = b"\x00\xff raw", {"x_at": str(NOW)} if timed else {}
    digest = hmac.new(b"k", (b"%d." % NOW if timed else b"") + body, algorithm)
    text = digest.hexdigest() if encoding == "hex" else base64.b64encode(digest.digest()).decode()
    assert verified(plain, body, x_sig=prefix + text, **at)
    if encoding == "hex":
        assert verified(plain, body, x_sig=prefix + text.upper(), **at)
    assert refused(plain, body + b" ", x_sig=prefix + text, **at).header == "x-sig"
    if timed:
        assert refused(plain, body, x_sig=prefix + text).header == "x-at"
        assert refused(plain, body, NOW + 11, x_sig=prefix + text, **at).header == "x-at"


@pytest.mark.parametrize(("prefix", "between"), [("", ","), ("sha256=", ","), ("sha256=", ", ")])
def test_of_several_plain_signatures_one_has_to_be_right(prefix: str, between: str) -> None:
    plain = verifier("hmac", "k", header="X-Sig", prefix=prefix)
    right, wrong = (hmac.new(key, b"body", "sha256").hexdigest() for key in (b"k", b"other"))
    for codes in ([right, wrong], [wrong, right]):
        assert verified(plain, b"body", x_sig=between.join(prefix + code for code in codes))
    assert refused(plain, b"body", x_sig=between.join(prefix + code for code in [wrong, wrong])).header == "x-sig"
    assert refused(plain, b"body", x_sig=f"{prefix}{wrong},").header == "x-sig"


def test_a_prefix_with_a_comma_in_it_is_that_of_one_signature() -> None:
    plain = verifier("hmac", "k", header="X-Sig", prefix="v1,")
    code = hmac.new(b"k", b"body", "sha256").hexdigest()
    assert verified(plain, b"body", x_sig=f"v1,{code}")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_missing_header_is_named_and_so_is_one_that_is_there_twice(scheme: str) -> None:
    by = verifier(scheme, WHSEC, header="X-Sig") if scheme == "hmac" else verifier(scheme, WHSEC)
    full = [(name.encode(), b"1") for name in by.scheme.needed]
    for n, (name, _) in enumerate(full):
        with pytest.raises(Unverified, match="is missing; verify: ") as caught:
            by.claim([*full[:n], (name, b" "), *full[n + 1 :]], 1)
        assert caught.value.header == name.decode()
        with pytest.raises(Unverified, match="is given twice"):
            by.claim([*full, full[n]], 1)


def test_a_signed_time_is_within_the_tolerance_on_both_sides_and_the_refusal_says_how_far_off_it_is() -> None:
    body = b"{}"
    for tolerance, most in (("5m", 300), ("30s", 30)):
        standard = verifier("standard-webhooks", WHSEC, tolerance=tolerance)
        for off in (-most - 1, -most, most, most + 1):
            at = NOW + off
            headers = {
                "webhook_id": "m",
                "webhook_timestamp": str(at),
                "webhook_signature": Webhook(WHSEC).sign("m", datetime.fromtimestamp(at, UTC), "{}"),
            }
            if abs(off) <= most:
                assert verified(standard, body, **headers)
            else:
                said = str(refused(standard, body, **headers))
                assert f"{abs(off)} s {'ahead of' if off > 0 else 'behind'} this machine's clock" in said
                assert f"{most} s is the most (verify.tolerance)" in said


def test_what_is_remembered_is_the_same_by_either_secret_and_a_message_has_a_mark_of_its_own() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    headers = {"webhook_id": "m", "webhook_timestamp": str(NOW)}
    either = [
        verified(
            verifier("standard-webhooks", WHSEC, OTHER),
            b"{}",
            webhook_signature=Webhook(s).sign("m", at, "{}"),
            **headers,
        )
        for s in (WHSEC, OTHER)
    ]
    assert either[0] == either[1]
    (replay, until), (message, _) = either[0]
    assert (replay[0], message[0], until) == ("s", "i", NOW + 300 + LEEWAY)
    # Signed a second later: another request, the same message
    later = {"webhook_timestamp": str(NOW + 1), "webhook_id": "m"}
    sign = Webhook(WHSEC).sign("m", datetime.fromtimestamp(NOW + 1, UTC), "{}")
    (again, _), (same, _) = verified(verifier("standard-webhooks", WHSEC), b"{}", webhook_signature=sign, **later)
    assert (again == replay, same) == (False, message)
    # Of another body: neither
    sign = Webhook(WHSEC).sign("m", at, "[]")
    (other, _), (another, _) = verified(verifier("standard-webhooks", WHSEC), b"[]", webhook_signature=sign, **headers)
    assert replay != other
    assert message != another
    taking = verifier("standard-webhooks", WHSEC, replays="take")
    assert verified(taking, b"[]", webhook_signature=sign, **headers) == []


def test_no_refusal_and_no_representation_shows_a_secret_or_the_right_signature() -> None:
    for scheme in ("github", "hmac", "stripe"):
        by = verifier(scheme, "very-secret-word")
        right = code("very-secret-word", b"%d.{}" % NOW if scheme == "stripe" else b"{}")
        wrong = {"x_hub_signature_256": "sha256=ff", "x_signature": "ff", "stripe_signature": f"t={NOW},v1=ff"}
        said = f"{refused(by, b'{}', **wrong)} {by!r} {by.scheme!r}"
        assert "very-secret-word" not in said
        assert right not in said


def test_a_secret_that_is_no_base64_is_refused_by_the_name_of_its_place_alone() -> None:
    for text in ("whsec_no base64!", "whsec_", "münchen", "a"):
        with pytest.raises(ConfigError) as caught:
            key_of("standard-webhooks", text, "the environment variable HOOK")
        assert str(caught.value).startswith("the environment variable HOOK is no secret of Standard Webhooks")
        assert "base64!" not in str(caught.value)
    assert hashlib.sha256(key_of("stripe", "whsec_no base64!", "")).digest()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "option 'auth' is missing"),
        ({"verify": "svix"}, "option 'verify' cannot be 'svix'; it is one of standard-webhooks, github, stripe, slack"),
        ({"verify": "github"}, "option 'verify' needs verify.secret"),
        ({"verify": "github", "verify.secret": " , "}, "option 'verify.secret'"),
        ({"verify": "github", "verify.secret": "hunter2"}, "option 'verify.secret' takes env:NAME, connection:ID or"),
        ({"auth": "none", "verify.secret": "env:X"}, "option 'verify.secret' has no meaning without verify: "),
        ({"auth": "none", "verify.tolerance": "1m"}, "option 'verify.tolerance' has no meaning without verify: "),
        (
            {"verify": "slack", "verify.secret": "env:X", "verify.header": "x"},
            "no meaning without verify: hmac; remove",
        ),
        ({"verify": "slack", "verify.secret": "env:X", "verify.tolerance": "soon"}, "option 'verify.tolerance'"),
        ({"verify": "slack", "verify.secret": "env:X", "verify.tolerance": "0s"}, "option 'verify.tolerance' must be"),
        (
            {"verify": "slack", "verify.secret": "env:X", "verify.replays": "no"},
            "option 'verify.replays' cannot be 'no'",
        ),
        ({"verify": "slack", "verify.secret": "env:X", "verify.remember": "0"}, "option 'verify.remember'"),
        ({"verify": "hmac", "verify.secret": "env:X", "verify.header": "a b"}, "option 'verify.header' is no name"),
        ({"verify": "hmac", "verify.secret": "env:X", "verify.header": ""}, "option 'verify.header' is empty"),
        (
            {"verify": "hmac", "verify.secret": "env:X", "verify.algorithm": "md5"},
            "option 'verify.algorithm' cannot be",
        ),
        ({"verify": "hmac", "verify.secret": "env:X", "verify.encoding": "hx"}, "option 'verify.encoding' cannot be"),
        (
            {"verify": "hmac", "verify.secret": "env:X", "verify.timestamp-header": "X-Signature"},
            "option 'verify.timestamp-header' names the header of the signature",
        ),
        ({"verify": "stripe", "verify.secret": "env:X", "pipe": "monotonic"}, "what stripe sends has no sequence"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GatewaySource(settings)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
