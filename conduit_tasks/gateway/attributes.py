"""The context attributes of CloudEvents 1.0: names and permitted values (specification, "Context Attributes").

This is the gateway's hot path. The PyPI package `cloudevents` reads the same formats, but needs more time per event
than the whole gateway, and does not check the values of attributes (docs/benchmarks.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from conduit_tasks.gateway.limits import CACHED
from conduit_tasks.record.cloudevents import PREFIX

ATTRIBUTES = 64 << 10
"""Characters at most of an event's attributes, by default."""
REQUIRED = ("id", "source", "type")
"""Attributes that every event must have, besides `specversion`."""
_META = {
    name: PREFIX + name
    for name in (
        *REQUIRED,
        "specversion",
        "datacontenttype",
        "dataschema",
        "subject",
        "time",
        "partitionkey",
        "sequence",
    )
}
_NAME = re.compile(r"[a-z0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PLAIN = r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]*"
_URI = re.compile(rf"{_PLAIN}(?:%[0-9A-Fa-f]{{2}}{_PLAIN})*")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:.+")
_MEDIA = re.compile(r"[A-Za-z0-9!#$&^_.+\-*]+/[A-Za-z0-9!#$&^_.+\-*]+(?:\s*;.*)?")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:)(\d\d)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII)


class BadEvent(Exception):
    """An event that is refused: `status` 400 or 415, the attribute at fault, and in a batch its number from 0."""

    def __init__(self, detail: str, attribute: str | None = None, status: int = 400, event: int | None = None) -> None:
        super().__init__(detail)
        self.detail, self.attribute, self.status, self.event = detail, attribute, status, event


def metadata(attributes: Mapping[str, Any], most: int = ATTRIBUTES) -> dict[str, str]:
    """Returns the attributes as a record's metadata, all as text; names and values together have `most` characters at
    most. Raises BadEvent, which names the attribute at fault."""
    out: dict[str, str] = {}
    size = sum(map(len, attributes))
    for name, value in attributes.items():
        if value is None:
            continue
        meta = _META.get(name) or _named(name)
        if value.__class__ is str:
            out[meta] = value
            size += len(value)
        elif value.__class__ is bool:
            out[meta] = "true" if value else "false"
        elif value.__class__ is int and -(2**31) <= value < 2**31:
            out[meta] = str(value)
        else:
            raise BadEvent(f"attribute '{name}' is neither text, a boolean nor a whole number of 32 bits", name)
    if size > most:
        # Checked before anything goes through them character by character.
        raise BadEvent(f"the attributes of an event may have {most} characters (max-attributes-size), not {size}")
    version = out.get("cloudevents.specversion")
    if version != "1.0":
        said = "is missing" if version is None else f"is '{version[:20]}', not 1.0"
        raise BadEvent(f"attribute 'specversion' {said}", "specversion")
    for name in REQUIRED:
        if not out.get(_META[name]):
            raise BadEvent(f"attribute '{name}' is missing or empty", name)
    _check(out)
    return out


def is_clean(head: bytes) -> bool:
    """Returns whether JSON text surely has no control character in an attribute: a fast check for the usual case."""
    return head.isascii() and b"\\" not in head and b"\x7f" not in head


def check_text(attributes: Mapping[str, str]) -> None:
    """Raises BadEvent for a control character (specification, type String)."""
    for name, value in attributes.items():
        if _CONTROL.search(value):
            short = name.removeprefix(PREFIX)
            raise BadEvent(f"attribute '{short}' holds a control character", short)


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadEvent(f"'{name[:40]}' is no name of an attribute: lower-case letters and digits only", name[:40])
    return PREFIX + name


def _check(out: Mapping[str, str]) -> None:
    if not _is_uri(out["cloudevents.source"]):
        raise BadEvent("attribute 'source' is not a URI reference (RFC 3986)", "source")
    time = out.get("cloudevents.time")
    if time is not None and not is_time(time):
        raise BadEvent("attribute 'time' is not a time in the form of RFC 3339", "time")
    subject = out.get("cloudevents.subject")
    if subject == "":
        raise BadEvent("attribute 'subject' is empty; leave it out", "subject")
    schema = out.get("cloudevents.dataschema")
    if schema is not None and not (_is_uri(schema) and _ABSOLUTE.fullmatch(schema)):
        raise BadEvent("attribute 'dataschema' is not an absolute URI", "dataschema")
    content = out.get("cloudevents.datacontenttype")
    if content is not None and not _is_media(content):
        raise BadEvent("attribute 'datacontenttype' is not a media type (RFC 2046)", "datacontenttype")


def is_time(text: str) -> bool:
    """Returns whether the text is a time of RFC 3339, leap seconds included."""
    found = _TIME.fullmatch(text)
    if not found:
        return False
    try:
        datetime.fromisoformat(found[1] + ("59" if found[2] == "60" else found[2]))
    except ValueError:
        return False
    return True


# Short texts recur, so they are cached. Long ones do not, and with them a producer could fill the cache's memory.


def _is_uri(text: str) -> bool:
    return (_known_uri if len(text) <= CACHED else _known_uri.__wrapped__)(text)


def _is_media(text: str) -> bool:
    return (_known_media if len(text) <= CACHED else _known_media.__wrapped__)(text)


def is_json(content_type: str | None) -> bool:
    """Returns whether data of this type is JSON in UTF-8; absent means JSON (CloudEvents JSON format, 3.1)."""
    if content_type is None:
        return True
    return (_known_json if len(content_type) <= CACHED else _known_json.__wrapped__)(content_type)


@lru_cache(maxsize=4096)
def _known_uri(text: str) -> bool:
    return text != "" and _URI.fullmatch(text) is not None


@lru_cache(maxsize=256)
def _known_media(text: str) -> bool:
    return _MEDIA.fullmatch(text) is not None


@lru_cache(maxsize=256)
def _known_json(content_type: str) -> bool:
    media, _, parameters = content_type.lower().partition(";")
    media = media.strip()
    charset = re.search(r'charset\s*=\s*"?([^";\s]+)', parameters)
    if charset and charset[1] not in ("utf-8", "utf8", "us-ascii"):
        return False
    return media.endswith(("/json", "+json"))
