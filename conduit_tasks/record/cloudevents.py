"""Every record as a CloudEvent (CloudEvents 1.0), for trigger filters and HTTP destinations.

An attribute comes from the first of these that has it:

1. metadata `cloudevents.<attribute>`, which a producer or a source's settings set;
2. for the attributes of the specification: id = the record's, source = `<pipeline>/<connector>`,
   type = `<connector>.<operation>`, subject = the key as text, time = `opencdc.createdAt` or
   `opencdc.readAt` (unix nanoseconds) in RFC 3339, specversion = 1.0, datacontenttype =
   `application/json` if the payload is structured;
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
"""Attributes of the specification; metadata of the same name without the prefix is not read for them."""
TIMES = ("opencdc.createdAt", "opencdc.readAt")


def view(record: Record, attributes: Iterable[str] | None = None) -> dict[str, Any]:
    """Returns the attributes that the record has: all and `data`, or only the named ones."""
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
    """Returns the attribute `source` of records that a connector reads."""
    return f"{pipeline}/{connector}"


def event_type(connector: str, operation: str) -> str:
    """Returns the attribute `type` of records that a connector reads."""
    return f"{connector}.{operation}"


def text(data: Data) -> str | None:
    """Returns a key as text: raw bytes as UTF-8 (invalid bytes become U+FFFD), structured data as JSON."""
    return None if data is None else data_bytes(data).decode(errors="replace")


def time(meta: dict[str, str]) -> str | None:
    """Returns the record's own or read time in RFC 3339, from metadata; None if neither is a number of nanoseconds that
    gives a date."""
    for name in TIMES:
        value = meta.get(name)
        if value is not None:
            with suppress(ValueError):
                return rfc3339(int(value))
    return None


def rfc3339(nanoseconds: int) -> str:
    """Returns Unix nanoseconds as RFC 3339 in UTC; a fraction only if it is not zero, without trailing zeros. Raises
    ValueError if the time is not in the years 1 to 9999."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        whole = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"{nanoseconds} ns since 1970 is no date between the years 1 and 9999") from None
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "Z" if rest else f"{whole}Z"


def unix_nanoseconds(value: str) -> int:
    """Returns the unix nanoseconds of an RFC 3339 text (a blank for the T, no zone = UTC, and a date alone are accepted
    too).

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
