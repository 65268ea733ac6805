"""The operators as closures (CloudEvents SQL 1.0.0, section 3.4).

An operator casts its operands. If an operand failed or cannot be cast, the result is the zero value of the operator's
type: errors end an evaluation ("fail fast", section 4.1), as a filter needs it. The exception is NOT: an operand that
cannot be cast counts as false, so the result is true; an Integer cannot be cast there (the conformance suite expects
both for `NOT 10`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from conduit_tasks.filters.cesql.errors import Fault, Kind
from conduit_tasks.filters.cesql.like import compile_like
from conduit_tasks.filters.cesql.values import (
    CastFailed,
    Faults,
    Run,
    Value,
    View,
    cast,
    primitive,
    to_boolean,
    to_integer,
    to_text,
)


def constant(value: Value) -> Run:
    """Compiles a literal."""
    return lambda view, faults: value


def attribute(name: str) -> Run:
    """Compiles an attribute; a missing one is false, as the type assumed for it is Boolean (section 3.2)."""
    fault = missing(name)

    def run(view: View, faults: Faults) -> Any:
        value = view.get(name)
        if value.__class__ is str:
            return value
        if value is None:
            faults.append(fault)
            return False
        return primitive(value)

    return run


def missing(name: str) -> Fault:
    """Returns the fault of an event without this attribute."""
    return Fault(Kind.missing_attribute, f"the event has no attribute {name}")


def equals_constant(name: str, wanted: Value, positive: bool) -> Run:
    """Compiles `attribute = literal` and `attribute != literal`, the most frequent operation, as one step."""
    fault, kind = missing(name), wanted.__class__

    def run(view: View, faults: Faults) -> bool:
        value = view.get(name)
        if value.__class__ is kind:
            return (value == wanted) is positive
        if value is None:
            faults.append(fault)
            return False
        try:
            return (cast(primitive(value), kind) == wanted) is positive
        except CastFailed as failed:
            faults.append(failed.fault)
            return False

    return run


def equals(left: Run, right: Run, positive: bool) -> Run:
    """Compiles `=` (positive) and `!=`: the left operand is cast to the right one's type."""

    def run(view: View, faults: Faults) -> bool:
        x, y = left(view, faults), right(view, faults)
        if faults:
            return False
        try:
            return (cast(x, y.__class__) == y) is positive
        except CastFailed as failed:
            faults.append(failed.fault)
            return False

    return run


ORDER: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def ordered(left: Run, right: Run, test: Callable[[int, int], bool]) -> Run:
    """Compiles `<`, `<=`, `>`, `>=`, which are defined for integers only."""

    def run(view: View, faults: Faults) -> bool:
        x, y = left(view, faults), right(view, faults)
        if faults:
            return False
        try:
            return test(
                x if x.__class__ is int else to_integer(x),
                y if y.__class__ is int else to_integer(y),
            )
        except CastFailed as failed:
            faults.append(failed.fault)
            return False

    return run


def negation(operand: Run) -> Run:
    """Compiles NOT."""

    def run(view: View, faults: Faults) -> bool:
        x = operand(view, faults)
        if faults:
            return False
        if x.__class__ is bool:
            return not x
        try:
            if x.__class__ is int:
                raise CastFailed(x, bool)
            return not to_boolean(x)
        except CastFailed as failed:
            faults.append(failed.fault)
            return True

    return run


def logic(first: Run, rest: Sequence[tuple[str, Run]]) -> Run:
    """Compiles AND, OR, XOR from left to right; AND and OR evaluate their right operand only if it decides."""
    names = {name for name, _ in rest}
    if names == {"AND"}:
        return _chain([first, *(run for _, run in rest)], until=False)
    if names == {"OR"}:
        return _chain([first, *(run for _, run in rest)], until=True)

    def run(view: View, faults: Faults) -> bool:
        x = _boolean(first(view, faults), faults)
        for name, operand in rest:
            if faults:
                return False
            if name == "XOR":
                x = x is not _boolean(operand(view, faults), faults)
            elif x is (name == "AND"):
                x = _boolean(operand(view, faults), faults)
        return x and not faults

    return run


def _chain(operands: list[Run], until: bool) -> Run:
    """Compiles a chain of AND, evaluated until an operand is false, or of OR, until one is true."""

    def run(view: View, faults: Faults) -> bool:
        for operand in operands:
            x = operand(view, faults)
            if x.__class__ is not bool:
                x = _boolean(x, faults)
            if faults:
                return False
            if x is until:
                return until
        return not until

    return run


def _boolean(x: Any, faults: Faults) -> bool:
    """Returns the operand of AND, OR, XOR as Boolean."""
    if x.__class__ is bool:
        return x
    try:
        return to_boolean(x)
    except CastFailed as failed:
        faults.append(failed.fault)
        return False


def like(operand: Run, pattern: str, positive: bool) -> Run:
    """Compiles LIKE and NOT LIKE."""
    test = compile_like(pattern)

    def run(view: View, faults: Faults) -> bool:
        x = operand(view, faults)
        if faults:
            return False
        return test(x if x.__class__ is str else to_text(x)) is positive

    return run


def exists(name: str) -> Run:
    """Compiles EXISTS."""
    return lambda view, faults: view.get(name) is not None


def within(operand: Run, elements: Sequence[Run], positive: bool) -> Run:
    """Compiles IN and NOT IN: the elements are cast to the left operand's type."""

    def run(view: View, faults: Faults) -> bool:
        x = operand(view, faults)
        found = False
        for element in elements:
            y = element(view, faults)
            if faults:
                return False
            try:
                found = found or cast(y, x.__class__) == x
            except CastFailed as failed:
                faults.append(failed.fault)
                return False
        return not faults and found is positive

    return run


def within_constants(operand: Run, texts: frozenset[str], positive: bool) -> Run:
    """Compiles IN and NOT IN with text literals only: one set look-up if the left operand is a text."""
    slow = within(operand, [constant(text) for text in sorted(texts)], positive)

    def run(view: View, faults: Faults) -> bool:
        x = operand(view, faults)
        if faults:
            return False
        return (x in texts) is positive if x.__class__ is str else slow(view, faults)

    return run
