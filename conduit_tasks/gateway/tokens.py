"""The tokens of producers, and the secrets by which they sign: read from the places that the options name, and the
check of tokens. They are never logged or stored."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

from conduit_tasks.connectors.signatures import key_of
from conduit_tasks.errors import ConfigError
from conduit_tasks.gateway.verify import Scheme, Verifier

SCHEME = b"bearer "


class Tokens:
    """The tokens of one source; several, so that they can be rotated. Only their hashes are kept."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(t.encode()).digest() for t in tokens]

    @property
    def needed(self) -> bool:
        """Whether a token is needed; False if everybody may send."""
        return bool(self._digests)

    def accept(self, authorization: bytes | None) -> bool:
        """Returns whether `Authorization: Bearer <token>` has a right token. Takes the same time for a wrong one."""
        if authorization is None or authorization[: len(SCHEME)].lower() != SCHEME:
            return not self._digests
        shown = hashlib.sha256(authorization[len(SCHEME) :].strip()).digest()
        # All are compared, so that the time does not reveal which one matched.
        return sum(hmac.compare_digest(shown, digest) for digest in self._digests) > 0 or not self._digests


def resolve(places: Sequence[tuple[str, str]]) -> Tokens:
    """Returns the tokens from these places, (env | connection | variable, name). Raises ConfigError, which names the
    place without a token."""
    return Tokens([_one(kind, name, "token") for kind, name in places])


def verifier(scheme: Scheme, places: Sequence[tuple[str, str]]) -> Verifier:
    """Returns the verification of a source, with the secrets from these places. Raises ConfigError, as `resolve`, and
    for a secret that its scheme cannot read."""
    keys = [
        key_of(scheme.name, _one(kind, name, "secret"), f"gateway: what {_SAID[kind]} {name} holds")
        for kind, name in places
    ]
    return Verifier(scheme, keys)


_SAID = {
    "env": "the environment variable",
    "connection": "the password of the Airflow connection",
    "variable": "the Airflow variable",
}


def _one(kind: str, name: str, what: str) -> str:
    if kind == "env":
        found = os.environ.get(name, "")
    elif kind == "variable":
        from airflow.models.variable import Variable

        found = Variable.get_variable_from_secrets(name) or ""
    else:
        from airflow.exceptions import AirflowNotFoundException
        from airflow.models.connection import Connection

        try:
            found = Connection.get_connection_from_secrets(name).password or ""
        except AirflowNotFoundException:
            found = ""
    if not found.strip():
        raise ConfigError(f"gateway: no {what}: {_SAID[kind]} {name} is missing or empty")
    return found.strip()
