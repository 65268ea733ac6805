"""Records as CloudEvents over HTTP, in its binary and structured modes (CloudEvents HTTP binding 1.0.2, JSON format).

Attributes are those of `cloudevents.view`. A name that CloudEvents does not allow (it takes small letters and digits)
is left out: metadata that shall travel as an extension needs an allowed name. Control characters, which no attribute
may hold, become U+FFFD. `data` is the payload after, of a deleted record the payload before.
"""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote

from conduit_tasks.record import jsons
from conduit_tasks.record.cloudevents import view
from conduit_tasks.record.record import Data, Record, data_bytes

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
RAW = "application/octet-stream"

_NAME = re.compile(r"[a-z0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SAFE = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')
"""Characters of a header's value that are not percent-encoded (HTTP binding, 3.1.3.2)."""


def binary(record: Record) -> tuple[str, bytes, str]:
    """Returns header lines `ce-…`, the body and its content type. No metadata of a record can end a header."""
    attributes, data = _attributes(record)
    kind = attributes.pop("datacontenttype", "") or (RAW if isinstance(data, bytes) else "application/json")
    lines = "".join(f"ce-{name}: {quote(value, safe=_SAFE)}\r\n" for name, value in attributes.items())
    return lines, data_bytes(data), kind if kind.isprintable() and kind.isascii() else RAW


def structured(record: Record) -> dict[str, Any]:
    """Returns the event in the JSON format, for `orjson.dumps`."""
    event, data = _attributes(record)
    if not isinstance(data, bytes):
        return event if data is None else {**event, "data": data}
    kind = event.setdefault("datacontenttype", RAW).partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return {**event, "data": jsons.exact(data)}
        if kind.startswith("text/"):
            return {**event, "data": data.decode()}
    except ValueError:
        pass  # it does not match its content type: sent as bytes, it stays whole
    return {**event, "data_base64": base64.b64encode(data).decode()}


def _attributes(record: Record) -> tuple[dict[str, str], Data]:
    found = view(record)
    found.pop("data", None)
    payload = record.after if record.after is not None else record.before
    attributes = {n: _CONTROL.sub("\ufffd", str(v)) for n, v in found.items() if _NAME.fullmatch(n) and v != ""}
    if isinstance(payload, dict):
        attributes.setdefault("datacontenttype", "application/json")
    return attributes, payload
