"""Heads of the `http` connector's requests: what all share, the number of a record in an index pipe, and a check that
no header decides where a request ends."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote

from yarl import URL

from conduit_tasks.connectors.options import HEADER
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.base import AFTER, EPOCH, INDEX, LANE

_PIPE = ((LANE, "Conduit-Lane"), (EPOCH, "Conduit-Epoch"), (INDEX, "Conduit-Index"), (AFTER, "Conduit-After"))
"""Metadata of a record that travels through an index pipe, and the header it is sent in."""

FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"})
"""Headers that decide where a request ends, or what follows it on its connection."""


def head(method: str, url: URL, headers: Mapping[str, str], later: set[str]) -> str:
    """Returns the part of the head that all requests share; `later`: names, in lower case, that each request adds
    itself."""
    fixed = {"Host": url.host_port_subcomponent or "", "Accept": "*/*", "User-Agent": "conduit-tasks"}
    given = {name.lower() for name in headers}
    merged = {**{k: v for k, v in fixed.items() if k.lower() not in given}, **headers}
    lines = [f"{name}: {value}\r\n" for name, value in merged.items() if name.lower() not in later]
    return f"{method} {url.raw_path_qs} HTTP/1.1\r\n{''.join(lines)}"


def checked(option: str, name: str, value: str) -> None:
    """Raises ConfigError if this is no header, or one that decides where a request ends."""
    if not HEADER.fullmatch(name) or any(c in value for c in "\r\n\0") or not value.isascii():
        raise ConfigError(f"http: option '{option}' is no header")
    if name.lower() in FRAMING:
        raise ConfigError(f"http: option '{option}': {name} is written by the client; leave it out")


def headers(settings: Mapping[str, str]) -> dict[str, str]:
    headers = {name.removeprefix("headers."): v for name, v in settings.items() if name.startswith("headers.")}
    for name, value in headers.items():
        checked(f"headers.{name}", name, value)
    if key := settings.get("idempotency-header", "").strip():
        checked("idempotency-header", key, "")
    checked("content-type", "Content-Type", settings.get("content-type", ""))
    user, bearer = settings.get("auth.basic.username"), settings.get("auth.bearer")
    if bearer and user:
        raise ConfigError("http: auth.bearer and auth.basic.username exclude each other")
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    elif user:
        pair = f"{user}:{settings.get('auth.basic.password', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers


def pipe_headers(metadata: Mapping[str, str]) -> str:
    """Returns headers with the number of a record in an index pipe, quoted: metadata of a foreign record must not end
    one."""
    present = [(header, metadata[name]) for name, header in _PIPE if name in metadata]
    return "".join(f"{header}: {quote(value, safe='/%')}\r\n" for header, value in present)
