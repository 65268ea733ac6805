"""The functions of the language (CloudEvents SQL 1.0.0, section 3.5), and the casts as functions.

A function gets its arguments cast to its parameter types. If it fails, it raises FunctionFailed with the value that it
still returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from conduit_tasks.filters.cesql.errors import Fault, Kind
from conduit_tasks.filters.cesql.values import MAX, MIN, Value, castable

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""White space by Unicode; Python's own `strip` also removes four control characters, which TRIM must not."""

ANY = object
"""Type of a parameter that takes a value without a cast."""


class FunctionFailed(Exception):
    """An error with the value that the function still returns."""

    def __init__(self, message: str, value: Value, kind: Kind = Kind.function_evaluation) -> None:
        super().__init__(message)
        self.fault, self.value = Fault(kind, message), value


class Function(NamedTuple):
    """A function of the language. `parameters`: types of the fixed parameters; `more`: type of any number of further
    ones, None = no more."""

    call: Callable[..., Any]
    returns: type
    parameters: tuple[type, ...]
    more: type | None = None

    def takes(self, count: int) -> bool:
        """Returns whether it can be called with `count` arguments."""
        return count == len(self.parameters) or (self.more is not None and count > len(self.parameters))

    def types(self, count: int) -> tuple[type, ...]:
        """Returns the parameter type of each of `count` arguments."""
        if self.more is None:
            return self.parameters
        return self.parameters + (self.more,) * (count - len(self.parameters))


def _left(text: str, count: int) -> str:
    if count < 0:
        raise FunctionFailed(f"LEFT: {count} characters cannot be taken; give 0 or more", text)
    return text[:count]


def _right(text: str, count: int) -> str:
    if count < 0:
        raise FunctionFailed(f"RIGHT: {count} characters cannot be taken; give 0 or more", text)
    return text[max(len(text) - count, 0) :]


def _substring(text: str, position: int, length: int | None = None) -> str:
    if position > len(text) or position < -len(text):
        raise FunctionFailed(f"SUBSTRING: position {position} lies outside of a text of {len(text)} characters", "")
    if length is not None and length < 0:
        raise FunctionFailed(f"SUBSTRING: length {length} is negative", "")
    if position == 0:
        return ""
    start = position - 1 if position > 0 else len(text) + position
    return text[start:] if length is None else text[start : start + length]


def _abs(number: int) -> int:
    if number == MIN:
        raise FunctionFailed(f"ABS: {number} has no positive counterpart in 32 bits", MAX, Kind.math)
    return abs(number)


FUNCTIONS: dict[str, tuple[Function, ...]] = {
    "LENGTH": (Function(len, int, (str,)),),
    "CONCAT": (Function(lambda *texts: "".join(texts), str, (), more=str),),
    "CONCAT_WS": (Function(lambda delimiter, *texts: delimiter.join(texts), str, (str,), more=str),),
    "LOWER": (Function(str.lower, str, (str,)),),
    "UPPER": (Function(str.upper, str, (str,)),),
    "TRIM": (Function(lambda text: text.strip(WHITE_SPACE), str, (str,)),),
    "LEFT": (Function(_left, str, (str, int)),),
    "RIGHT": (Function(_right, str, (str, int)),),
    "SUBSTRING": (Function(_substring, str, (str, int)), Function(_substring, str, (str, int, int))),
    "ABS": (Function(_abs, int, (int,)),),
    "INT": (Function(int, int, (int,)),),
    "BOOL": (Function(bool, bool, (bool,)),),
    "STRING": (Function(str, str, (str,)),),
    "IS_INT": (Function(lambda value: castable(value, int), bool, (ANY,)),),
    "IS_BOOL": (Function(lambda value: castable(value, bool), bool, (ANY,)),),
}
"""Functions by name in upper case; overloads differ in the number of arguments."""


def find(name: str, arguments: int) -> Function | None:
    """Returns the function of this name (in any case) that takes `arguments` arguments; None if there is none."""
    return next((f for f in FUNCTIONS.get(name.upper(), ()) if f.takes(arguments)), None)
