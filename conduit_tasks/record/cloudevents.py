"""Every record as a CloudEvent (CloudEvents 1.0): what trigger filters read and HTTP destinations send.

An attribute comes from the first of these that has it:

1. metadata `cloudevents.<attribute>`, which a producer or a source's settings set;
2. for the attributes of the specification: id = the record's, source = `<pipeline>/<connector>`,
   type = `<connector>.<operation>`, subject = the key as text, time = `opencdc.createdAt` or
   `opencdc.readAt` (unix nanoseconds) in RFC 3339, specversion = 1.0, datacontenttype =
   `application/json` where the payload is structured;
3. for any other name: the metadata of that name (extensions).

`data` is the payload after, raw or structured.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from conduit_tasks.record.record import Data, Record, data_bytes

PREFIX = "cloudevents."
CONTEXT = ("id", "source", "type", "subject", "time", "specversion", "datacontenttype")
"""Attributes with a meaning of their own; metadata of the same name without the prefix is not read for them."""
TIMES = ("opencdc.createdAt", "opencdc.readAt")


def view(record: Record, attributes: Iterable[str] | None = None) -> dict[str, Any]:
    """The attributes that the record has: all of them and `data`, or only those named."""
    meta = record.meta()
    if attributes is not None:
        found = {name: _attribute(record, meta, name) for name in attributes}
        return {name: value for name, value in found.items() if value is not None}
    result: dict[str, Any] = {name: value for name in CONTEXT if (value := _attribute(record, meta, name)) is not None}
    for name, value in meta.items():
        if name.startswith(PREFIX):
            result[name[len(PREFIX) :]] = value
        elif name not in CONTEXT and name != "data":
            result.setdefault(name, value)
    if record.after is not None:
        result["data"] = record.after
    return result


def _attribute(  # noqa: PLR0911 - one line per attribute of the specification
    record: Record, meta: dict[str, str], name: str
) -> Any:
    if name == "data":
        return record.after
    value = meta.get(PREFIX + name)
    if value is not None:
        return value
    match name:
        case "id":
            return record.id
        case "source":
            return source(record.origin.pipeline, record.origin.connector)
        case "type":
            return event_type(record.origin.connector, record.operation)
        case "subject":
            return text(record.key)
        case "time":
            return time(meta)
        case "specversion":
            return "1.0"
        case "datacontenttype":
            return "application/json" if isinstance(record.after, dict) else None
    return meta.get(name)


def source(pipeline: str, connector: str) -> str:
    """The attribute `source` of what a connector reads."""
    return f"{pipeline}/{connector}"


def event_type(connector: str, operation: str) -> str:
    """The attribute `type` of what a connector reads."""
    return f"{connector}.{operation}"


def text(data: Data) -> str | None:
    """Key as text: raw bytes as UTF-8 (what is not becomes U+FFFD), structured as JSON."""
    return None if data is None else data_bytes(data).decode(errors="replace")


def time(meta: dict[str, str]) -> str | None:
    """The record's own or read time in RFC 3339, from metadata; None where neither is a number of nanoseconds."""
    for name in TIMES:
        value = meta.get(name)
        if value is not None:
            with suppress(ValueError):
                return rfc3339(int(value))
    return None


def rfc3339(nanoseconds: int) -> str:
    """Unix nanoseconds as RFC 3339 in UTC; the fraction only where there is one, without trailing zeros."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"{nanoseconds} ns since 1970 is no date between the years 1 and 9999") from None
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "Z" if rest else f"{whole}Z"


def unix_nanoseconds(value: str) -> int:
    """RFC 3339 (a blank for the T, no zone = UTC, and a date alone are taken too) as unix nanoseconds.

    Raises ValueError.
    """
    head, dot, tail = value.partition(".")
    digits = ""
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        if not digits:
            raise ValueError(f"{value!r} has no digits after the point")
        head += tail[len(digits) :]
    moment = datetime.fromisoformat(head)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(digits[:9].ljust(9, "0") or 0)
