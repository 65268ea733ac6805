"""Verification of signed webhooks by their scheme: over the raw bytes, before anything parses them, in constant time,
with marks by which none is taken twice.

| scheme | headers | what is signed |
|---|---|---|
| `standard-webhooks` | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<Base64>` | `<id>.<seconds>.<body>` |
| `github` | `X-Hub-Signature-256: sha256=<hex>` | the body |
| `stripe` | `Stripe-Signature: t=<seconds>,v1=<hex>,…` | `<seconds>.<body>` |
| `slack` | `X-Slack-Request-Timestamp`, `X-Slack-Signature: v0=<hex>` | `v0:<seconds>:<body>` |
| `hmac` | by its settings; several signatures, each behind its prefix, with commas | the body, or `<seconds>.<body>` |

What is said of a refused request never contains a secret or a signature that would have been right.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from conduit_tasks.connectors.signatures import ID, SIGNATURE, TIMESTAMP, encoded, mac

Headers = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI gives them: names in lower case."""

HUB = "x-hub-signature-256"
STRIPE = "stripe-signature"
SLACK, SLACK_TIME = "x-slack-signature", "x-slack-request-timestamp"
DIGITS = 12
"""Digits at most of a time in seconds."""
LEEWAY = 60
"""Seconds that a request is remembered beyond the time in which it would be taken: clocks of gateways differ."""
MARK = 15
"""Bytes of a mark's hash."""
REPLAY, REPEAT = "s", "i"
"""First character of a mark: of what was signed (the same request again), and of a message (the same message, signed
again)."""

Mark = tuple[str, int]
"""Something to remember of a request, and the second (Unix time) at which it is forgotten."""


class Unverified(Exception):
    """A request whose signature is missing, malformed, too old or wrong. `header`: the header at fault."""

    def __init__(self, detail: str, header: str = "") -> None:
        super().__init__(detail)
        self.detail, self.header = detail, header


@dataclass(frozen=True)
class Scheme:
    """Rules of one source. Names of headers are in lower case; `timestamp`: "" without one. `prefix`: text before the
    code in the header."""

    name: str
    header: str
    timestamp: str = ""
    algorithm: str = "sha256"
    encoding: str = "hex"
    prefix: str = ""
    tolerance: float = 300.0
    """Seconds that a signed time may differ from now, and that requests are remembered."""
    replays: bool = True
    """Whether a request that was taken before is refused."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Headers that a request must have."""
        if self.name == "standard-webhooks":
            return ID, TIMESTAMP, SIGNATURE
        return tuple(name for name in (self.timestamp, self.header) if name)


def scheme_of(name: str, tolerance: float, *, replays: bool, plain: Mapping[str, str]) -> Scheme:
    """Returns the rules of a scheme; `plain`: header, timestamp, algorithm, encoding, prefix of `hmac`."""
    known: dict[str, dict[str, str]] = {
        "standard-webhooks": {"header": SIGNATURE, "timestamp": TIMESTAMP, "encoding": "base64", "prefix": "v1,"},
        "github": {"header": HUB, "prefix": "sha256="},
        "stripe": {"header": STRIPE, "prefix": "v1="},
        "slack": {"header": SLACK, "timestamp": SLACK_TIME, "prefix": "v0="},
        "hmac": dict(plain),
    }
    return Scheme(name, tolerance=tolerance, replays=replays, **known[name])


@dataclass(frozen=True)
class Claim:
    """Claims of a request's headers: codes that may be right, and the bytes that are signed before the body.
    `id`: of the message, if it is signed; `time`: 0 without one."""

    codes: tuple[bytes, ...]
    before: bytes
    id: bytes = b""
    time: int = 0


@dataclass(frozen=True)
class Verifier:
    """Verification of one source's requests. Several keys: any of them may have signed, so that they can be rotated."""

    scheme: Scheme
    keys: Sequence[bytes] = field(repr=False)

    def claim(self, headers: Headers, now: float | None = None) -> Claim:
        """Reads the headers, so that a request without a signature, or one that is too old, costs no body. Raises
        Unverified."""
        found = self._headers(headers)
        claim = _CLAIMS.get(self.scheme.name, _plain)(self.scheme, found)
        if claim.time:
            ahead = claim.time - (time.time() if now is None else now)
            if abs(ahead) > self.scheme.tolerance:
                said = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock"
                raise Unverified(
                    f"the signed time is {said}, and {self.scheme.tolerance:g} s is the most (verify.tolerance)",
                    self.scheme.timestamp or self.scheme.header,
                )
        return claim

    def check(self, claim: Claim, body: bytes, now: float | None = None) -> list[Mark]:
        """Returns what to remember of a request that is signed as it claims. Raises Unverified."""
        scheme, right = self.scheme, 0
        for key in self.keys:
            code = encoded(mac(key, scheme.algorithm, claim.before, body), scheme.encoding)
            # All are compared, so that the time does not reveal which one matched.
            right += sum([hmac.compare_digest(code, each) for each in claim.codes])
        if not right:
            raise Unverified(
                "the signature is not one of this body by a secret of this source (verify.secret): another secret, or "
                "a body that was changed on the way",
                scheme.header,
            )
        return self._marks(claim, body, time.time() if now is None else now) if scheme.replays else []

    def _marks(self, claim: Claim, body: bytes, now: float) -> list[Mark]:
        """Marks hold for every key: a request signed by two of them is the same by either."""
        until = int((claim.time or now) + self.scheme.tolerance) + LEEWAY
        marks = [(_mark(REPLAY, claim.before, body), until)]
        if claim.id:
            message = _mark(REPEAT, claim.id, hashlib.sha256(body).digest())
            marks.append((message, int(now + self.scheme.tolerance) + LEEWAY))
        return marks

    def _headers(self, headers: Headers) -> dict[str, bytes]:
        needed = self.scheme.needed
        found: dict[str, bytes] = {}
        for raw, value in headers:
            name = raw.decode("latin-1")
            if name in needed:
                if name in found:
                    raise Unverified(f"the header {name} is given twice", name)
                found[name] = value.strip()
        for name in needed:
            if not found.get(name):
                said = f"verify: {self.scheme.name} needs {', '.join(needed)}"
                raise Unverified(f"the header {name} is missing; {said}", name)
        return found


def _mark(kind: str, *parts: bytes) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return kind + base64.b64encode(made.digest()[:MARK]).decode()


def _seconds(text: bytes, header: str) -> int:
    if not (text.isdigit() and len(text) <= DIGITS and int(text)):
        raise Unverified(f"the time in {header} is no Unix time in whole seconds", header)
    return int(text)


def _behind(scheme: Scheme, parts: Iterable[bytes]) -> tuple[bytes, ...]:
    """Returns the codes behind the prefix; parts of other versions are left out. Raises Unverified if none is left."""
    prefix = scheme.prefix.encode()
    codes = tuple(part[len(prefix) :] for part in parts if part.startswith(prefix) and len(part) > len(prefix))
    if not codes:
        raise Unverified(
            f"the header {scheme.header} holds no signature that begins with {scheme.prefix}", scheme.header
        )
    return codes


def _standard(scheme: Scheme, found: Mapping[str, bytes]) -> Claim:
    id, at = found[ID], found[TIMESTAMP]
    codes = _behind(scheme, found[SIGNATURE].split(b" "))
    return Claim(codes, b"%b.%b." % (id, at), id, _seconds(at, TIMESTAMP))


def _stripe(scheme: Scheme, found: Mapping[str, bytes]) -> Claim:
    parts = [part.strip() for part in found[STRIPE].split(b",")]
    times = [part[2:] for part in parts if part.startswith(b"t=")]
    if len(times) != 1:
        raise Unverified(f"the header {STRIPE} holds {'no' if not times else 'more than one'} time (t=)", STRIPE)
    at = _seconds(times[0], STRIPE)
    return Claim(_behind(scheme, parts), times[0] + b".", time=at)


def _slack(scheme: Scheme, found: Mapping[str, bytes]) -> Claim:
    at = found[SLACK_TIME]
    return Claim(_behind(scheme, [found[SLACK]]), b"v0:%b:" % at, time=_seconds(at, SLACK_TIME))


def _plain(scheme: Scheme, found: Mapping[str, bytes]) -> Claim:
    header = found[scheme.header]
    # A sender that rotates its secrets signs by several of them, as Stripe does.
    several = "," not in scheme.prefix
    codes = _behind(scheme, [part.strip() for part in header.split(b",")] if several else [header])
    if scheme.encoding == "hex":
        codes = tuple(code.lower() for code in codes)
    if not scheme.timestamp:
        return Claim(codes, b"")
    at = found[scheme.timestamp]
    return Claim(codes, at + b".", time=_seconds(at, scheme.timestamp))


_CLAIMS = {"standard-webhooks": _standard, "stripe": _stripe, "slack": _slack}
