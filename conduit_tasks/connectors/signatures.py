"""Signatures of webhooks: keys (how a secret is written) and codes that the gateway, which verifies, and `http`, which
signs, have in common.

Standard Webhooks (https://www.standardwebhooks.com) signs `<id>.<seconds>.<body>`; the plain scheme `hmac` signs the
body, or `<seconds>.<body>`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Literal

from conduit_tasks.connectors import options
from conduit_tasks.errors import ConfigError

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""Headers of Standard Webhooks."""
TAKEN = "Conduit-Taken"
"""Header of the gateway's 409 to a signed request that it took before."""
SECRET = "whsec_"  # noqa: S105 - what stands before one
"""Prefix of a secret of Standard Webhooks: Base64 follows."""
HEADER = "X-Signature"
"""Header of the plain scheme, unless a setting names another."""
ALGORITHMS = ("sha256", "sha512")
ENCODINGS = ("hex", "base64")

Encoding = Literal["hex", "base64"]


def mac(key: bytes, algorithm: str, *parts: bytes) -> bytes:
    """Returns the HMAC of these parts, one after the other."""
    made = hmac.new(key, digestmod=algorithm)
    for part in parts:
        made.update(part)
    return made.digest()


def encoded(code: bytes, encoding: str) -> bytes:
    """Returns a code as a header holds it."""
    return code.hex().encode() if encoding == "hex" else base64.b64encode(code)


def standard_key(secret: str, where: str) -> bytes:
    """Returns the key of a Standard Webhooks secret, Base64 with or without `whsec_` before it. Raises ConfigError,
    which begins with `where` and never shows the secret."""
    text = secret.strip().removeprefix(SECRET)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError(f"{where} is no secret of Standard Webhooks: {SECRET} and Base64 behind it")
    return key


def key_of(scheme: str, secret: str, where: str) -> bytes:
    """Returns the key of a secret, as its scheme reads it. Raises ConfigError (see `standard_key`)."""
    return standard_key(secret, where) if scheme == "standard-webhooks" else secret.encode()


def only_with(
    settings: Mapping[str, str], given: Mapping[str, str], option: str, belongs: Mapping[str, tuple[str, ...]]
) -> None:
    """Raises ConfigError for a setting that has no meaning with what `option` is set to. `given`: the settings as
    written in the file; `belongs`: setting → the choices that it belongs to."""
    plugin, chosen = settings.plugin if isinstance(settings, options.Checked) else "", settings.get(option)
    for name, choices in belongs.items():
        if name in given and chosen not in choices:
            raise ConfigError(
                f"{plugin}: option '{name}' has no meaning without {option}: {' or '.join(choices)}; remove it"
            )
