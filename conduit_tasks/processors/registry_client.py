"""The registry of Avro schemas that options name: the built-in one, or one that speaks Confluent's API."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option
from conduit_tasks.connectors.http import certificates
from conduit_tasks.connectors.http.link_local import check_host
from conduit_tasks.connectors.http.peer import quiet
from conduit_tasks.errors import ConfigError, RecordError, Unavailable
from conduit_tasks.schemas.registry import RedisRegistry, SchemaRegistry
from conduit_tasks.settings import settings as installation

OPTIONS = (
    Option("url", "a Confluent-compatible schema registry; default: the one built in, in Redis"),
    Option("auth.basic.username", "user of HTTP basic authentication"),
    Option("auth.basic.password", "its password", secret=True),
    Option("tls.ca.cert", "certificates to trust, PEM, relative to the home folder"),
    Option("tls.client.cert", "certificate of ours, PEM"),
    Option("tls.client.key", "its key, PEM"),
    Option("allow-link-local", "allow link-local and cloud metadata addresses", default="false"),
)
T = TypeVar("T")
CONTENT = "application/vnd.schemaregistry.v1+json"
_PATIENCE = 10.0
"""Seconds for one request."""


def check_options(plugin: str, settings: Mapping[str, str]) -> None:
    """Raises ConfigError if the options do not fit together."""
    for pair in (("auth.basic.username", "auth.basic.password"), ("tls.client.cert", "tls.client.key")):
        missing = [name for name in pair if not settings.get(name)]
        if len(missing) == 1:
            raise ConfigError(f"{plugin}: option '{missing[0]}' is missing; {' and '.join(pair)} go together")
    url = settings.get("url", "")
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(f"{plugin}: option 'url' must begin with http:// or https://")


def open_registry(settings: Mapping[str, str]) -> SchemaRegistry:
    """Opens the registry that these options name."""
    return ConfluentRegistry(settings) if settings.get("url") else RedisRegistry()


class ConfluentRegistry:
    """A registry that speaks Confluent's API."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        import httpx

        from conduit_tasks.connectors.http.guard import transport

        quiet()
        url = settings["url"].rstrip("/")
        guarded = not options.boolean({"allow-link-local": "false", **settings}, "allow-link-local")
        if guarded:
            check_host(httpx.URL(url).host, "option 'url'")
        user, password = settings.get("auth.basic.username"), settings.get("auth.basic.password")
        self._client = httpx.Client(
            base_url=url,
            auth=(user, password) if user and password else None,
            transport=transport(guarded=guarded, verify=_tls(url, settings)),
            timeout=_PATIENCE,
            headers={"Accept": CONTENT},
            trust_env=False,
        )
        self._subjects: set[str] = set()

    def by_id(self, id: int) -> str:
        answer = self._ask("GET", f"/schemas/ids/{id}")
        if answer is None:
            raise RecordError(f"the schema registry has no schema with the id {id}")
        return self._part(answer, "schema", str)

    def by_version(self, subject: str, version: int) -> tuple[int, str]:
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if answer is None:
            raise ConfigError(f"the schema registry has no version {version} of the subject {subject}; register it")
        return self._part(answer, "id", int), self._part(answer, "schema", str)

    def register(self, subject: str, schema: str) -> int:
        name = quote(subject, safe="")
        if subject not in self._subjects:
            if self._ask("GET", f"/subjects/{name}/versions") is None:
                # Inferred schemas need not be compatible with each other, so their subject checks nothing.
                self._ask("PUT", f"/config/{name}", {"compatibility": "NONE"})
            self._subjects.add(subject)
        answer = self._ask("POST", f"/subjects/{name}/versions", {"schema": schema, "schemaType": "AVRO"})
        if answer is None:
            raise ConfigError("option 'url': the schema registry takes no schemas there; check the address")
        return self._part(answer, "id", int)

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the answer's JSON; None if it is 404."""
        import httpx

        from conduit_tasks.connectors.http.guard import ask

        content = orjson.dumps(body) if body is not None else None
        headers = {"Content-Type": CONTENT} if body is not None else {}
        try:
            answer = ask(self._client, method, path, within=_PATIENCE, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"the schema registry does not answer: {type(error).__name__}: {error}") from None
        if answer.status_code == 404:
            return None
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise Unavailable(f"the schema registry answers {answer.status_code}", status=answer.status_code)
        if answer.status_code >= 300:
            said = answer.content[:200].decode(errors="replace")
            raise ConfigError(f"the schema registry answers {answer.status_code} to {path}: {said}")
        try:
            return orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"the schema registry's answer to {path} is not JSON: {error}") from None

    @staticmethod
    def _part(answer: Any, name: str, kind: type[T]) -> T:
        found = answer.get(name) if isinstance(answer, dict) else None
        if type(found) is not kind:
            raise Unavailable(f"the schema registry's answer has no '{name}' as documented")
        return found


def _tls(url: str, settings: Mapping[str, str]) -> ssl.SSLContext:
    def path(name: str) -> Path | None:
        return Path(installation().path(settings[name])) if settings.get(name) else None

    if not url.startswith("https:"):
        # The client wants one in any case; this one trusts nobody, and reads nothing.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return certificates.trusting(path("tls.ca.cert"), path("tls.client.cert"), path("tls.client.key"))
    except OSError as error:
        raise ConfigError(f"tls.ca.cert, tls.client.cert or tls.client.key cannot be read: {error}") from error
