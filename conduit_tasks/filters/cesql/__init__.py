"""CloudEvents SQL 1.0.0: expressions over the attributes of an event, compiled once, evaluated fast.

    expression = compile("type = 'flight.departed' AND EXISTS carrier")
    expression.evaluate({"type": "flight.departed", "carrier": "UA"})    # Evaluation(result=True, …)

An evaluation always has a result, and may have an error. As a trigger's filter an expression matches only if the
result is the Boolean true and there was no error (section 1.2): `Expression.matches`.
"""

from __future__ import annotations

from typing import NamedTuple

from conduit_tasks.filters.cesql.compile import Problem, build
from conduit_tasks.filters.cesql.errors import Fault, Kind, ParseError
from conduit_tasks.filters.cesql.values import NAMES, Faults, Value, View

__all__ = ["Evaluation", "Expression", "Fault", "Kind", "ParseError", "Problem", "compile", "compile_filter"]


class Evaluation(NamedTuple):
    """Outcome of an evaluation: `result` is always set; `error_kind` and `message` of the error that ended it, None if
    there was none."""

    result: Value
    error_kind: Kind | None = None
    message: str | None = None


_TRUE, _FALSE = Evaluation(True), Evaluation(False)


class Expression:
    """A compiled expression; safe to share between threads.

    `attributes`: names it reads. `problems`: parts that fail on every event. `type`: str, int or bool; None if it
    depends on the event.
    """

    __slots__ = ("_run", "attributes", "problems", "text", "type")

    def __init__(self, text: str) -> None:
        node = build(text)
        self.text, self.attributes, self.problems, self.type = text, node.reads, node.problems, node.type
        self._run = node.run

    def evaluate(self, view: View) -> Evaluation:
        """Returns result and error for the attributes in `view`; a None value is the same as absent."""
        faults: Faults = []
        result = self._run(view, faults)
        if faults:
            return Evaluation(result, *faults[0])
        return _TRUE if result is True else _FALSE if result is False else Evaluation(result)

    def matches(self, view: View) -> bool:
        """Returns whether a trigger with this filter wants the event: the result is true, and there is no error."""
        faults: Faults = []
        return self._run(view, faults) is True and not faults

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile(text: str) -> Expression:
    """Compiles an expression. Raises ParseError, a ConfigError with `line` and `column`; its `kind` is Kind.parse."""
    return Expression(text)


def compile_filter(text: str) -> Expression:
    """Compiles the expression of a trigger. Raises ParseError, also if a part of it fails on every event or the result
    is never Boolean."""
    expression = Expression(text)
    for _, message, line, column in expression.problems:
        raise ParseError(message, line, column)
    if expression.type not in (None, bool):
        raise ParseError(f"a filter is Boolean, this expression is {NAMES[expression.type]}; compare it with something")
    return expression
