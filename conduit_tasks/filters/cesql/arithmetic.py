"""Arithmetic of 32-bit integers as closures (CloudEvents SQL 1.0.0, section 3.4), see `operators`."""

from __future__ import annotations

import operator
from collections.abc import Callable

from conduit_tasks.filters.cesql.errors import Fault, Kind
from conduit_tasks.filters.cesql.values import (
    MAX,
    MIN,
    CastFailed,
    Faults,
    Run,
    View,
    to_integer,
)


def _truncated(x: int, y: int) -> int:
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _truncated,
    "%": lambda x, y: x - y * _truncated(x, y),
}


def arithmetic(left: Run, right: Run, symbol: str) -> Run:
    """Compiles `+ - * / %` of 32 bit integers; division rounds towards 0, the remainder has the sign of the
    dividend."""
    compute = ARITHMETIC[symbol]

    def run(view: View, faults: Faults) -> int:
        x, y = left(view, faults), right(view, faults)
        if faults:
            return 0
        try:
            x, y = to_integer(x), to_integer(y)
            result = compute(x, y)
        except CastFailed as failed:
            faults.append(failed.fault)
            return 0
        except ZeroDivisionError:
            faults.append(Fault(Kind.math, f"{x} {symbol} 0: division by zero"))
            return 0
        return within_32_bits(result, f"{x} {symbol} {y}", faults)

    return run


def within_32_bits(result: int, shown: str, faults: Faults) -> int:
    """Returns the result, or 0 with a math fault if it is no 32 bit integer."""
    if MIN <= result <= MAX:
        return result
    faults.append(Fault(Kind.math, f"{shown}: the result is no 32 bit integer"))
    return 0


def negative(operand: Run) -> Run:
    """Compiles unary minus."""

    def run(view: View, faults: Faults) -> int:
        x = operand(view, faults)
        if faults:
            return 0
        try:
            x = to_integer(x)
        except CastFailed as failed:
            faults.append(failed.fault)
            return 0
        return within_32_bits(-x, f"-({x})", faults)

    return run
