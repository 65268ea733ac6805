"""Headers of signed webhooks as anybody may send them: verified, or refused with a reason; nothing forged passes."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime

import orjson
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from conduit_tasks.connectors.signatures import key_of
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.connector import SCHEMES, GatewaySource
from conduit_tasks.gateway.parse import Webhooks, parse
from conduit_tasks.gateway.services import FORM, handshake
from conduit_tasks.gateway.verify import Headers, Mark, Unverified, Verifier
from tests.fuzz.hostile import BYTES, TEXT, damaged, ending, fuzzed, near

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_700_000_000
BODY = b'{"type": "t", "id": "1"}'
WORDS = [
    *(
        "v1",
        "v0",
        "v1a",
        "v2",
        "t",
        "sha256",
        "=",
        ",",
        " ",
        "v1,",
        "t=",
        "v1=",
        "v0=",
        "sha256=",
        ".",
        "-",
        "+",
        "1e9",
    ),
    *(str(NOW), f"0{NOW}", f"{NOW}.0", "9" * 12, "9" * 13, "0", "", "\t", "١٢٣", "aGVsbG8=", "00" * 32),
]


def verifier(scheme: str) -> Verifier:
    more = {"verify.timestamp-header": "X-At", "verify.prefix": "p="} if scheme == "hmac" else {}
    source = GatewaySource({"verify": scheme, "verify.secret": "env:X", **more})
    assert source.scheme is not None
    return Verifier(source.scheme, [key_of(scheme, SECRET, "here")])


VERIFIERS = {scheme: verifier(scheme) for scheme in SCHEMES}


def right(scheme: str) -> dict[bytes, bytes]:
    """The headers of a request that is signed well."""
    key = SECRET.encode()
    timed = {"stripe": f"{NOW}.", "slack": f"v0:{NOW}:", "hmac": f"{NOW}."}.get(scheme, "").encode()
    code = hmac.new(key, timed + BODY, "sha256").hexdigest().encode()
    return {
        "github": {b"x-hub-signature-256": b"sha256=" + code},
        "stripe": {b"stripe-signature": b"t=%d,v1=" % NOW + code},
        "slack": {b"x-slack-signature": b"v0=" + code, b"x-slack-request-timestamp": b"%d" % NOW},
        "hmac": {b"x-signature": b"p=" + code, b"x-at": b"%d" % NOW},
        "standard-webhooks": {
            b"webhook-id": b"m",
            b"webhook-timestamp": b"%d" % NOW,
            b"webhook-signature": Webhook(SECRET).sign("m", datetime.fromtimestamp(NOW, UTC), BODY.decode()).encode(),
        },
    }[scheme]


def tried(by: Verifier, headers: Headers, body: bytes = BODY) -> list[Mark] | None:
    with ending():
        try:
            marks = by.check(by.claim(headers, NOW), body, NOW)
        except Unverified as bad:
            refused = bad
        else:
            refused = None
        if refused is not None:
            assert orjson.dumps([refused.detail, refused.header])
            assert refused.header in by.scheme.needed
            return None
        assert all(mark[0] in "si" and mark.isascii() for mark, _ in marks)
        return marks


VALUES = BYTES | TEXT.map(lambda t: t.encode(errors="replace")) | near(WORDS).map(lambda t: t.encode(errors="replace"))


@fuzzed
@given(scheme=st.sampled_from(SCHEMES), values=st.lists(VALUES, min_size=3, max_size=3), body=BYTES)
def test_any_header(scheme: str, values: list[bytes], body: bytes) -> None:
    by = VERIFIERS[scheme]
    headers = list(zip([name.encode() for name in by.scheme.needed], values))
    assert tried(by, headers, body) is None
    assert tried(by, [*headers, (b"x-other", body), *headers[:1]], body) is None


@fuzzed
@given(data=st.data(), scheme=st.sampled_from(SCHEMES))
def test_a_damaged_header_is_refused_or_says_the_same(data: st.DataObject, scheme: str) -> None:
    by, sound = VERIFIERS[scheme], right(scheme)
    whole = tried(by, sound.items())
    assert whole
    name = data.draw(st.sampled_from(sorted(sound)))
    marks = tried(by, {**sound, name: data.draw(damaged(st.just(sound[name])))}.items())
    # What passes is remembered as the sound one is: a header written otherwise makes no second request of it.
    assert marks is None or marks == whole


@fuzzed
@given(body=damaged(st.just(BODY)), scheme=st.sampled_from(SCHEMES))
def test_a_changed_body_is_refused(body: bytes, scheme: str) -> None:
    assert (tried(VERIFIERS[scheme], right(scheme).items(), body) is not None) == (body == BODY)


@fuzzed
@given(
    body=BYTES
    | damaged(
        st.sampled_from([BODY, b"payload=%7B%22a%22%3A1%7D", b"command=%2Fx&text=%C3%BC", b"payload=1&payload=2"])
    )
    | near(["payload", "=", "&", "%7B%7D", "{}", "%", "+", ";"]).map(lambda t: t.encode(errors="replace")),
    kind=st.sampled_from([FORM, f"{FORM}; charset=utf-8", "application/json"]),
    service=st.sampled_from(SCHEMES),
    id=VALUES,
)
@example(body=b"payload=%ff", kind=FORM, service="slack", id=b"\xff")
@example(body=b'payload={"event_id":"\\ud800"}', kind=FORM, service="slack", id=b"")
@example(body=b"&" * 5_000 + b"a=1&" * 5_000, kind=FORM, service="github", id=b"\x00")
@example(body=b'{"type": "url_verification", "challenge": "\\ud800"}', kind="application/json", service="slack", id=b"")
def test_what_a_service_may_send(body: bytes, kind: str, service: str, id: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"x-github-delivery", id), (b"webhook-id", id)]
    with ending():
        handshake(service, headers, body)
        try:
            refused, events = None, parse(headers, body, Webhooks(service=service))
        except BadEvent as bad:
            refused, events = bad, []
        assert (len(events) == 1) == (refused is None)
        if refused is not None:
            assert refused.status in (400, 415)
            assert orjson.dumps([refused.detail, refused.attribute])
