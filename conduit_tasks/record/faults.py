"""Checks of values that become part of a record: every destination must be able to write them."""

from __future__ import annotations

from typing import Any

from conduit_tasks.record import jsons
from conduit_tasks.record.record import OPERATIONS

DATA_PARTS = ("key", "before", "after")


def value_fault(part: str, value: Any) -> str | None:
    """Returns why a record must not have this value as its `part`; None if it may."""
    if part in DATA_PARTS:
        if isinstance(value, dict):
            return jsons.fault(value)
        return None if value is None or isinstance(value, bytes) else _fault_of(value, "bytes, an object or none")
    if part == "position":
        return None if isinstance(value, bytes) else _fault_of(value, "bytes")
    if part == "operation":
        return None if value in OPERATIONS else f"it is {value!r}, not one of {', '.join(OPERATIONS)}"
    if not isinstance(value, dict):
        return f"it is {type(value).__name__}, where an object of texts was expected"
    return next((why for entry in value.items() if (why := _entry_fault(*entry)) is not None), None)


def _entry_fault(name: Any, value: Any) -> str | None:
    for text in (name, value):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                return f"{name!a} is not UTF-8"
        elif text is not None or name is None:
            return f"{name!a} has {type(text).__name__}, where a text was expected"
    return None


def _fault_of(value: Any, expected: str) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "it is not UTF-8"
        return None
    return f"it is {type(value).__name__}, where {expected} was expected"
