"""JSON values as PostgreSQL's text, by the column's type, for `COPY` and parameters."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from conduit_tasks.connectors.column_types import of_postgres
from conduit_tasks.errors import DoesNotFit
from conduit_tasks.record import jsons

JSON = ("json", "jsonb")
_COPY = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"'})


def cell(value: Any, type_: str, column: str) -> str | None:
    """Returns the text of a value for a column of this type. Raises DoesNotFit if the column would hold another value,
    or if bytes are no base64."""
    if value is None:
        return None
    if isinstance(value, bytes):
        # A key may be raw.
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise DoesNotFit(f"field '{column}' is bytes that are no text; encode them (base64)") from None
    if type_ in JSON:
        return _json(value)
    if type_ == "bytea":
        return _bytes(value, column)
    if isinstance(value, list) and type_.endswith("[]"):
        return _array(value, type_[:-2], column)
    text = text_of(value)
    if (of := of_postgres(type_)) is not None:
        if why := of.unfit(text if of.kind == "text" else value):
            raise DoesNotFit(f"field '{column}' does not fit the column, which is {type_}: {why}")
        if of.kind == "int" and isinstance(value, float):
            return str(int(value))
    return text


def copy_line(cells: list[str | None]) -> str:
    """Returns a line of `COPY … FROM STDIN` in text format."""
    return "\t".join("\\N" if c is None else c.translate(_COPY) for c in cells) + "\n"


def text_of(value: Any) -> str:
    """Returns the text of a value for a column of any other type."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | dict | list):
        return _json(value)
    return str(value)


def _json(value: Any) -> str:
    return jsons.dumps(value).decode()


def _bytes(value: Any, column: str) -> str:
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except (TypeError, ValueError, binascii.Error):
        raise DoesNotFit(f"column {column} is bytea, which takes base64 text") from None


def _array(values: list[Any], type_: str, column: str) -> str:
    return "{" + ",".join(_element(v, type_, column) for v in values) + "}"


def _element(value: Any, type_: str, column: str) -> str:
    if isinstance(value, list) and type_ not in JSON:
        return _array(value, type_, column)
    text = cell(value, type_, column)
    return "NULL" if text is None else f'"{text.translate(_QUOTED)}"'
