"""Rules of the services whose webhooks are known: where the id and type of an event are, forms, and handshakes.

| `verify` | id | type | answered without an event |
|---|---|---|---|
| `github` | header `X-GitHub-Delivery` | header `X-GitHub-Event` | `ping` |
| `stripe` | `id` | `type` | |
| `slack` | `event_id`, `trigger_id` | `event.type`, `type`, `command` | `url_verification`, with its challenge |
| `standard-webhooks` | header `webhook-id` | `type` | |

GitHub and Slack also send forms: a field `payload` with JSON, or (Slack's commands) fields that become a JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from conduit_tasks.connectors.signatures import ID
from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.record import jsons

FORM = "application/x-www-form-urlencoded"
SERVICES = frozenset({"github", "slack"})
"""Services that send forms."""
FIELDS = 1_000
"""Fields of a form at most."""
NAME = 256
"""Characters at most of an id or type that is taken from a body."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Reply:
    """An answer with 200 to a request that is no event."""

    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


def of_form(body: bytes) -> bytes:
    """Returns the JSON that a form holds. Raises BadEvent."""
    try:
        fields = dict(
            parse_qsl(
                body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS, errors="strict", separator="&"
            )
        )
    except ValueError as error:
        # UnicodeDecodeError is one, too.
        raise BadEvent(f"the body is not the form that Content-Type says it is: {error}", "data") from None
    if fields.keys() == {"payload"}:
        return fields["payload"].encode()
    return jsons.dumps(fields) if fields else b""


def named(service: str, headers: Headers, data: Any) -> dict[str, str]:
    """Returns the attributes id and type that the service gives an event, as far as it has them."""
    if service == "github":
        found = {"id": _header(headers, b"x-github-delivery"), "type": _header(headers, b"x-github-event")}
    elif data.__class__ is not dict:
        found = {"id": _header(headers, ID.encode())} if service == "standard-webhooks" else {}
    elif service == "slack":
        event = data.get("event")
        inner = event.get("type") if event.__class__ is dict else None
        found = {
            "id": data.get("event_id") or data.get("trigger_id"),
            "type": inner or data.get("type") or data.get("command"),
        }
    elif service == "stripe":
        found = {"id": data.get("id"), "type": data.get("type")}
    elif service == "standard-webhooks":
        found = {"id": _header(headers, ID.encode()), "type": data.get("type")}
    else:
        found = {}
    return {
        name: value
        for name, value in found.items()
        if value.__class__ is str and 0 < len(value) <= NAME and value.isprintable()
    }


def handshake(service: str, headers: Headers, body: bytes) -> Reply | None:
    """Returns the answer to a request by which a service only tries the address; None if it is an event."""
    if service == "github":
        return Reply() if _header(headers, b"x-github-event") == "ping" else None
    if service != "slack" or b"url_verification" not in body:
        return None
    try:
        data = jsons.loads(body)
    except jsons.JSONDecodeError:
        return None
    if data.__class__ is not dict or data.get("type") != "url_verification":
        return None
    challenge = data.get("challenge")
    return Reply(challenge.encode()) if challenge.__class__ is str else None


def _header(headers: Headers, name: bytes) -> str | None:
    return next((value.decode("latin-1").strip() for header, value in headers if header == name), None)
