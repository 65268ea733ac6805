"""Signatures of the `http` destination's requests (`sign`): Standard Webhooks, or a plain HMAC.

Every attempt is signed again, with a time that no earlier attempt of the same record had: a receiver that refuses a
request that it has taken before (as the gateway does) would refuse a repeated one whose answer was lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.http.head import FRAMING
from conduit_tasks.connectors.signatures import (
    ALGORITHMS,
    ENCODINGS,
    HEADER,
    ID,
    SIGNATURE,
    TIMESTAMP,
    encoded,
    key_of,
    mac,
    only_with,
)
from conduit_tasks.errors import ConfigError

SCHEMES = ("standard-webhooks", "hmac")
TIME_HEADER = "X-Signature-Timestamp"
"""Header of the plain scheme's time, unless a setting names another."""
AHEAD = 60
"""Seconds at most that a signed time is ahead of the clock; each attempt within the same second adds one."""
MANY = 4096
"""Records whose last signed time is remembered, and besides as many as are signed in a second."""
_ENV = "env:"

OPTIONS = (
    Option("sign", "the scheme by which every request is signed; default: none", choices=SCHEMES),
    Option(
        "sign.secret",
        "the secret, by ${NAME}, or env:NAME for a variable of the process that sends; several, comma-separated, each "
        "of which signs, to rotate them: with hmac each as env:NAME, as a secret itself may have a comma in it",
        secret=True,
        example="env:X",
    ),
    Option("sign.header", "with hmac: the header that holds the signature", default=HEADER),
    Option("sign.algorithm", "with hmac: the hash", default="sha256", choices=ALGORITHMS),
    Option("sign.encoding", "with hmac: how the header writes the signature", default="hex", choices=ENCODINGS),
    Option("sign.prefix", "with hmac: text before the signature in its header, such as sha256="),
    Option(
        "sign.timestamp-header",
        "with hmac: the header that holds the time in seconds, which is signed before the body, with a dot between "
        "them; empty: the body alone is signed",
        default=TIME_HEADER,
    ),
)
_BELONGS: dict[str, tuple[str, ...]] = {
    "sign.secret": SCHEMES,
    **dict.fromkeys(
        ("sign.header", "sign.algorithm", "sign.encoding", "sign.prefix", "sign.timestamp-header"), ("hmac",)
    ),
}
_TAKEN = FRAMING | {"host", "content-type", "authorization", "user-agent"}


class Signer:
    """Signs the requests of one destination. Raises ConfigError, which names the option and never shows a secret."""

    def __init__(self, settings: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Takes the settings with defaults, and as they are written in the file."""
        self.scheme = settings["sign"]
        self._secrets = _secrets(settings)
        self._keys: tuple[bytes, ...] = ()
        plain = self.scheme == "hmac"
        self._header = options.header(settings, "sign.header") if plain else SIGNATURE
        self._time_header = options.header(settings, "sign.timestamp-header") if plain else TIMESTAMP
        self._algorithm = settings["sign.algorithm"] if plain else "sha256"
        self._encoding = settings["sign.encoding"] if plain else "base64"
        self._prefix = settings.get("sign.prefix", "") if plain else "v1,"
        if plain and not self._header:
            raise ConfigError("http: option 'sign.header' is empty; name the header that holds the signature")
        if not self._prefix.isascii() or not self._prefix.isprintable():
            raise ConfigError("http: option 'sign.prefix' is no text of a header")
        if plain and len(self._secrets) > 1 and "," in self._prefix:
            raise ConfigError("http: option 'sign.prefix': the comma stands between the signatures of several secrets")
        self._between = "," if plain else " "
        self._free(settings, given)
        for secret in self._secrets:
            if not secret.startswith(_ENV):
                self._key(secret)
        self._signed: dict[str, int] = {}
        """Id of a request → the second that its last attempt was signed with, as far as it may come again."""
        self._second = 0

    def open(self) -> None:
        """Reads the secrets that are in the environment. Raises ConfigError."""
        self._keys = tuple(self._key(secret) for secret in self._secrets)

    def lines(self, id: str, body: bytes, now: float | None = None) -> str:
        """Returns the header lines of one attempt. `id`: the same at every attempt of the same request."""
        at = self._at(id, int(time.time() if now is None else now))
        before = f"{id}.{at}." if self.scheme == "standard-webhooks" else f"{at}." if self._time_header else ""
        codes = [
            self._prefix + encoded(mac(key, self._algorithm, before.encode(), body), self._encoding).decode()
            for key in self._keys
        ]
        lines = f"{self._header}: {self._between.join(codes)}\r\n"
        if self._time_header:
            lines += f"{self._time_header}: {at}\r\n"
        return f"{ID}: {id}\r\n{lines}" if self.scheme == "standard-webhooks" else lines

    def _at(self, id: str, now: int) -> int:
        if now != self._second and len(self._signed) > MANY:
            self._signed = {each: at for each, at in self._signed.items() if at >= now}
        self._second = now
        at = self._signed[id] = min(max(now, self._signed.get(id, 0) + 1), now + AHEAD)
        return at

    def _key(self, secret: str) -> bytes:
        where = "http: what option 'sign.secret' holds"
        if secret.startswith(_ENV):
            name = secret.removeprefix(_ENV)
            secret, where = os.environ.get(name, "").strip(), f"http: what the environment variable {name} holds"
            if not secret:
                raise ConfigError(
                    f"http: option 'sign.secret': the environment variable {name} is missing or empty where this "
                    "destination sends; set it there, or write ${" + name + "}"
                )
        return key_of(self.scheme, secret, where)

    def _free(self, settings: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Raises ConfigError if one of our headers is written by something else."""
        ours = {self._header: "sign.header", self._time_header: "sign.timestamp-header", ID: "sign"}
        if self.scheme != "hmac":
            ours = dict.fromkeys((ID, TIMESTAMP, SIGNATURE), "sign")
        elif self._header == self._time_header:
            raise ConfigError("http: option 'sign.timestamp-header' names the header of the signature")
        else:
            del ours[ID]
        for name in given:
            if name.startswith("headers.") and name.removeprefix("headers.").lower() in ours:
                raise ConfigError(f"http: option '{name}' is a header that sign writes; remove it")
        taken = _TAKEN | {settings["idempotency-header"].strip().lower()}
        for name, option in ours.items():
            if name and name in taken:
                raise ConfigError(f"http: option '{option}': {name} is written by something else; name another header")


def wanted(settings: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Returns whether requests are to be signed. Raises ConfigError for a setting that has no meaning then."""
    only_with(settings, given, "sign", _BELONGS)
    return "sign" in settings


def _secrets(settings: Mapping[str, str]) -> list[str]:
    """Returns the secrets, or the places of those in the environment. Raises ConfigError."""
    said = settings.get("sign.secret", "").strip()
    # A plain secret may have a comma in it.
    listed = settings["sign"] == "standard-webhooks" or said.startswith(_ENV)
    found = options.words(settings, "sign.secret") if listed else [said]
    if not all(found) or not found:
        raise ConfigError("http: option 'sign' needs sign.secret: ${NAME} of an environment variable, or env:NAME")
    for each in found:
        kind, colon, name = each.partition(":")
        if colon and kind in ("connection", "variable"):
            raise ConfigError(
                f"http: option 'sign.secret' takes ${{NAME}} or env:NAME; {kind}: is for sources of the gateway"
            )
        if colon and kind == "env" and not name.strip():
            raise ConfigError("http: option 'sign.secret': env: names no environment variable")
        if settings["sign"] == "hmac" and len(found) > 1 and not each.startswith(_ENV):
            raise ConfigError("http: option 'sign.secret': with hmac each of several secrets is env:NAME")
    return found
