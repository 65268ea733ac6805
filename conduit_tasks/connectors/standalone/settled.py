"""Settings that a connector was told: it hears that it is new, or that they have changed, which is known without
keeping a secret. Kept in the spool once it has answered (`spool/told.py`), and with the position or the state, which
stand for it where the spool knows nothing.

A value may be a credential, which is stored nowhere. So a value is kept as it is only if neither its name nor its form
suggests that; of any other only a salted digest is kept, which tells whether it has changed, and not from what.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.hiding import Hide, hiding, password_of
from conduit_tasks.connectors.standalone.client import Client
from conduit_tasks.errors import ConfigError, SpoolError, Unavailable
from conduit_tasks.secret_names import CONFIG

if TYPE_CHECKING:
    from conduit_tasks.spool.told import Told

log = logging.getLogger(__name__)

Kept = dict[str, Any]
"""JSON: {"salt", "values": option → value as it is, "digests": option → digest}."""
LONGEST = 256
_LOGIN = re.compile(r"://|:[^@:\s]++@")
"""A URL, or a user with a password before a host."""


def kept(config: Mapping[str, str], salt: str = "") -> Kept:
    """Returns what is stored of settings."""
    salt = salt or secrets.token_hex(8)
    plain = (k for k, v in config.items() if not (CONFIG.search(k) or _LOGIN.search(v) or len(v) > LONGEST))
    values = {k: config[k] for k in plain}
    digests = {k: _digest(salt, v) for k, v in config.items() if k not in values}
    return {"salt": salt, "values": values, "digests": digests}


def same(before: Kept, config: Mapping[str, str]) -> bool:
    """Returns whether settings are those of which `before` was kept, whatever was kept as it is by then."""
    salt, values, digests = before["salt"], before["values"], before["digests"]
    if config.keys() != values.keys() | digests.keys():
        return False
    return all(values[k] == v if k in values else digests[k] == _digest(salt, v) for k, v in config.items())


def config_before(before: Kept, config: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of which `before` was kept; one that has changed and was not stored is empty."""
    salt, digests = before["salt"], before["digests"]
    hidden = {
        name: config[name] if name in config and _digest(salt, config[name]) == digest else ""
        for name, digest in digests.items()
    }
    return {**before["values"], **hidden}


def tell(  # noqa: PLR0917 - whom, what of it is known, and where that is noted
    client: Client, side: str, before: Kept | None, config: Mapping[str, str], told: Told | None = None, name: str = ""
) -> Kept:
    """Tells a connector that it is new, or that its settings have changed, if so, and notes it. Returns what is to be
    kept. `before`: what the position or the state has of it; `name`: the one that the connector gives itself.

    Of several processes of one connector the first tells, and notes it before the others look. Raises SpoolError if
    what it was told cannot be read, or cannot be noted for the others; Unavailable if another one tells for too long.
    """
    if told is None:
        return _told(client, side, before, config)
    known = told.all()
    was = known.get(name, before)
    if told.turn is not None and not (was is not None and same(was, config)):
        with told.turn():
            made = _told(client, side, told.all().get(name, before), config)
            told.note(name, made)
            return made
    made = _told(client, side, was, config)
    if known.get(name) != made:
        try:
            told.note(name, made)
        except SpoolError as error:
            log.warning("%s: what it was told is kept with what it does next: %s", client.name, error)
    return made


def _told(client: Client, side: str, before: Kept | None, config: Mapping[str, str]) -> Kept:
    if before is not None and same(before, config):
        # What an earlier version kept as it is may be a credential by now.
        return kept(config, before["salt"])
    try:
        if before is None:
            client.optional(side, "LifecycleOnCreated", config=dict(config))
        else:
            was = config_before(before, config)
            client.optional(side, "LifecycleOnUpdated", config_before=was, config_after=dict(config))
    except Unavailable as error:
        if client.process.gone():
            raise
        raise ConfigError(f"{error}; correct its settings, or what they name") from None
    return kept(config)


def hiding_of(config: Mapping[str, str]) -> Hide:
    """Returns a function that hides, in what a connector says, the settings that may be credentials, by their names,
    and the passwords in URLs."""
    return hiding([*(v for k, v in config.items() if CONFIG.search(k)), *map(password_of, config.values())])


def _digest(salt: str, value: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", value.encode(), salt.encode(), 20_000).hex()[:32]
