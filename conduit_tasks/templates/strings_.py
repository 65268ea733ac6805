"""Functions of sprig for text, regular expressions, encodings and hashes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import Any

import orjson

from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.templates import regex
from conduit_tasks.templates.values import nested, text


def go_quote(value: str) -> str:
    """Returns the text as a Go string literal (`%q`)."""
    out = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{out}"'


def _default_json(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_opencdc()
    return nested(value)


def to_json(value: Any, *, escaped: bool = True, indent: bool = False) -> str:
    """Returns JSON with sorted keys, as Go prints maps; `escaped` escapes `<`, `>` and `&` as Go does for HTML."""
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    option |= orjson.OPT_INDENT_2 if indent else 0
    try:
        out = orjson.dumps(value, default=_default_json, option=option).decode()
    except TypeError:
        try:
            out = orjson.dumps(jsons.with_digits(value), default=_default_json, option=option).decode()
        except TypeError as error:
            raise RecordError(f"toJson: {error}") from None
    if escaped:
        out = out.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return out


def _from_json(value: Any, *, strict: bool = False) -> Any:
    try:
        return jsons.loads(text(value))
    except jsons.JSONDecodeError as error:
        if strict:
            raise RecordError(f"mustFromJson: {error}") from None
        return None


def _b64dec(value: Any) -> str:
    try:
        return base64.b64decode(text(value), validate=True).decode(errors="replace")
    except binascii.Error as error:
        raise RecordError(f"b64dec: {error}") from None


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else text(value).encode()


def _title(value: Any) -> str:
    return re.sub(r"(^|\s)(\S)", lambda m: m[1] + m[2].upper(), text(value))


def _substr(start: int, end: int, value: Any) -> str:
    whole = text(value)
    if start < 0:
        return whole[:end]
    return whole[start:] if end < 0 or end > len(whole) else whole[start:end]


def _trunc(count: int, value: Any) -> str:
    whole = text(value)
    if count < 0:
        return whole[count:] if len(whole) + count > 0 else whole
    return whole[:count]


def _replace(old: Any, new: Any, value: Any) -> str:
    whole, gone, put = text(value), text(old), text(new)
    if len(put) > len(gone) and len(whole) + (len(put) - len(gone)) * whole.count(gone) > regex.MOST:
        raise regex.too_long("replace")
    return whole.replace(gone, put)


def _repeat(count: int, value: Any) -> str:
    if count * len(text(value)) > 1_000_000:
        raise RecordError(f"repeat would make text of more than 1,000,000 characters ({count} times)")
    return text(value) * count


TABLE: dict[str, tuple[Callable[..., Any], int, int]] = {
    "upper": (lambda v: text(v).upper(), 1, 1),
    "lower": (lambda v: text(v).lower(), 1, 1),
    "title": (_title, 1, 1),
    "untitle": (lambda v: re.sub(r"(^|\s)(\S)", lambda m: m[1] + m[2].lower(), text(v)), 1, 1),
    "trim": (lambda v: text(v).strip(), 1, 1),
    "trimAll": (lambda chars, v: text(v).strip(text(chars)), 2, 2),
    "trimLeft": (lambda chars, v: text(v).lstrip(text(chars)), 2, 2),
    "trimRight": (lambda chars, v: text(v).rstrip(text(chars)), 2, 2),
    "trimPrefix": (lambda prefix, v: text(v).removeprefix(text(prefix)), 2, 2),
    "trimSuffix": (lambda suffix, v: text(v).removesuffix(text(suffix)), 2, 2),
    "nospace": (lambda v: "".join(text(v).split()), 1, 1),
    "replace": (_replace, 3, 3),
    "contains": (lambda part, v: text(part) in text(v), 2, 2),
    "hasPrefix": (lambda prefix, v: text(v).startswith(text(prefix)), 2, 2),
    "hasSuffix": (lambda suffix, v: text(v).endswith(text(suffix)), 2, 2),
    "repeat": (_repeat, 2, 2),
    "substr": (_substr, 3, 3),
    "trunc": (_trunc, 2, 2),
    "quote": (lambda *v: " ".join(go_quote(nested(x)) for x in v if x is not None), 0, 1000),
    "squote": (lambda *v: " ".join(f"'{nested(x)}'" for x in v if x is not None), 0, 1000),
    "cat": (lambda *v: " ".join(nested(x) for x in v if x is not None), 0, 1000),
    "toString": (text, 1, 1),
    "toJson": (to_json, 1, 1),
    "mustToJson": (to_json, 1, 1),
    "toRawJson": (lambda v: to_json(v, escaped=False), 1, 1),
    "toPrettyJson": (lambda v: to_json(v, indent=True), 1, 1),
    "fromJson": (_from_json, 1, 1),
    "mustFromJson": (lambda v: _from_json(v, strict=True), 1, 1),
    "b64enc": (lambda v: base64.b64encode(_raw(v)).decode(), 1, 1),
    "b64dec": (_b64dec, 1, 1),
    "sha1sum": (lambda v: hashlib.sha1(_raw(v), usedforsecurity=False).hexdigest(), 1, 1),
    "sha256sum": (lambda v: hashlib.sha256(_raw(v)).hexdigest(), 1, 1),
    "sha512sum": (lambda v: hashlib.sha512(_raw(v)).hexdigest(), 1, 1),
    "regexMatch": (regex.matches, 2, 2),
    "regexFind": (regex.find, 2, 2),
    "regexFindAll": (regex.find_all, 3, 3),
    "regexReplaceAll": (regex.replace_all, 3, 3),
    "regexReplaceAllLiteral": (regex.replace_literal, 3, 3),
    "regexQuoteMeta": (regex.quote, 1, 1),
}
