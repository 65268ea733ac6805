"""Parser from requests to stored events: CloudEvents over HTTP (binary, structured, batched) and webhooks (plain JSON,
forms), and the id and type that each has.

The content type sets the mode (CloudEvents HTTP binding, 3): `application/cloudevents+json` structured,
`application/cloudevents-batch+json` batched; else `ce-` headers make it binary, and JSON without them is a webhook.
A batch with a bad event is refused whole, so that its producer knows what is stored.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from conduit_tasks.gateway.attributes import ATTRIBUTES, BadEvent, check_text, is_clean, is_json, metadata
from conduit_tasks.gateway.event import CREATED, TIME, Kind, pack
from conduit_tasks.gateway.services import FORM, SERVICES, named, of_form
from conduit_tasks.record import jsons
from conduit_tasks.record.cloudevents import PREFIX
from conduit_tasks.record.cloudevents_http import BATCHED, STRUCTURED

_HEADER = b"ce-"
Headers = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI gives them: names in lower case."""


@dataclass(frozen=True)
class Webhooks:
    """Rules by which plain JSON becomes an event. `taken`: whether it is taken at all. `id`, `type`: headers that hold
    them, in lower case; "" = none does. `service`: the service that sends them, whose own rules apply (see `services`);
    "" = none that is known."""

    taken: bool = True
    id: str = ""
    type: str = ""
    service: str = ""


def parse(headers: Headers, body: bytes, webhooks: Webhooks = Webhooks(), most: int = ATTRIBUTES) -> list[bytes]:
    """Returns the events of a request, packed, in order. `most`: see `metadata`. Raises BadEvent."""
    content_type: str | None = None
    binary: dict[str, Any] = {}
    for name, value in headers:
        if name == b"content-type":
            content_type = value.decode("latin-1").strip()
        elif name.startswith(_HEADER):
            attribute = name[3:].decode("latin-1")
            if attribute in binary:
                raise BadEvent(f"the header ce-{attribute} is given twice", attribute)
            binary[attribute] = _header_value(attribute, value)
    media = content_type.partition(";")[0].rstrip().lower() if content_type else ""
    received = str(time.time_ns())
    if media == STRUCTURED:
        return [_structured(_loads(body), received, most)]
    if media == BATCHED:
        return _batch(body, received, most)
    if media.startswith("application/cloudevents"):
        raise BadEvent(f"{media} is not taken; write {STRUCTURED} or {BATCHED}", status=415)
    if binary:
        return [_binary(binary, content_type, body, received, most)]
    if webhooks.taken and media == FORM and webhooks.service in SERVICES:
        body, content_type = of_form(body), "application/json"
    if not webhooks.taken or not content_type or not is_json(content_type):
        also = ", or JSON as it is" if webhooks.taken else ""
        said = f"'{media[:60]}'" if media else "no content type"
        raise BadEvent(
            f"{said} without ce- headers is no event here; send a CloudEvent (binary, structured or batched){also}",
            status=415,
        )
    return [_webhook(headers, webhooks, content_type, body, received)]


def _loads(body: bytes) -> Any:
    try:
        return jsons.loads(body)
    except jsons.JSONDecodeError as error:
        raise BadEvent(f"the body is not JSON: {error}") from None


def _batch(body: bytes, received: str, most: int) -> list[bytes]:
    items = _loads(body)
    if not isinstance(items, list):
        raise BadEvent("a batch is a JSON array of events")
    out = []
    for number, item in enumerate(items):
        try:
            out.append(_structured(item, received, most))
        except BadEvent as bad:
            raise BadEvent(f"event {number}: {bad.detail}", bad.attribute, bad.status, number) from None
    return out


def _structured(event: Any, received: str, most: int) -> bytes:
    """Packs an event in the CloudEvents JSON format: attributes beside `data` or `data_base64`."""
    if event.__class__ is not dict:
        raise BadEvent("an event is a JSON object")
    data = event.pop("data", None)
    encoded = event.pop("data_base64", None)
    meta = metadata(event, most)
    if encoded is not None:
        if data is not None:
            raise BadEvent("an event has data or data_base64, not both", "data_base64")
        try:
            return _packed(b"r", meta, binascii.a2b_base64(encoded, strict_mode=True), received)
        except (ValueError, TypeError):
            raise BadEvent("data_base64 is not Base64 (RFC 4648)", "data_base64") from None
    if data is None:
        return _packed(b"n", meta, b"", received)
    if data.__class__ is dict:
        return _packed(b"s", meta, jsons.dumps(data), received)
    if data.__class__ is str and not is_json(meta.get("cloudevents.datacontenttype")):
        return _packed(b"r", meta, data.encode(), received)
    return _packed(b"r", meta, jsons.dumps(data), received)


def _binary(attributes: dict[str, Any], content_type: str | None, body: bytes, received: str, most: int) -> bytes:
    """Packs an event by HTTP binding 3.1: attributes in headers, data in the body, its type in Content-Type."""
    for reserved in ("data", "data_base64", "datacontenttype"):
        if reserved in attributes:
            raise BadEvent(f"ce-{reserved} is no attribute; the body and Content-Type say it", reserved)
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    meta = metadata(attributes, most)
    kind, data = _shaped(body, content_type)
    return _packed(kind, meta, data, received)


def _webhook(headers: Headers, webhooks: Webhooks, content_type: str, body: bytes, received: str) -> bytes:
    """Packs JSON as it is. A configured header sets the event's id or type; without one the record's own apply, as for
    its source."""
    meta: dict[str, str] = {}
    for attribute, wanted in (("id", webhooks.id), ("type", webhooks.type)):
        found = [value for name, value in headers if wanted and name == wanted.encode()]
        if wanted and not (found and found[0]):
            raise BadEvent(f"the header {wanted}, which holds the event's {attribute}, is missing or empty", attribute)
        if len(found) > 1:
            raise BadEvent(f"the header {wanted}, which holds the event's {attribute}, is given twice", attribute)
        if found:
            meta[PREFIX + attribute] = _header_value(attribute, found[0])
    if not body:
        raise BadEvent("the body is empty")
    data = _data(body)
    if webhooks.service:
        meta = {**{PREFIX + k: v for k, v in named(webhooks.service, headers, data).items()}, **meta}
    if data.__class__ is dict:
        return _packed(b"s", meta, body, received)
    meta["cloudevents.datacontenttype"] = content_type
    return _packed(b"r", meta, body, received)


def _shaped(body: bytes, content_type: str | None) -> tuple[Kind, bytes]:
    if not body:
        return b"n", b""
    if content_type is None or not is_json(content_type):
        return b"r", body
    return (b"s" if _data(body).__class__ is dict else b"r"), body


def _data(body: bytes) -> Any:
    try:
        return jsons.loads(body)
    except jsons.JSONDecodeError as error:
        raise BadEvent(f"the data is not the JSON that Content-Type says it is: {error}", "data") from None


def _packed(kind: Kind, meta: dict[str, str], data: bytes, received: str) -> bytes:
    if TIME not in meta:
        meta[CREATED] = received
    event = pack(kind, meta, data)
    head = event[: len(event) - len(data) - 1]
    if not is_clean(head):
        check_text(meta)
    return event


def _header_value(attribute: str, value: bytes) -> str:
    """Decodes a header by HTTP binding 3.1.3.2: percent-encoded UTF-8; the quotes of older senders are removed."""
    try:
        text = value.decode()
        if text[:1] == '"' and text[-1:] == '"' and len(text) > 1:
            text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        return unquote(text, errors="strict") if "%" in text else text
    except UnicodeDecodeError:
        raise BadEvent(f"the header ce-{attribute} is not percent-encoded UTF-8", attribute) from None
