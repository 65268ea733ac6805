"""Errors of an expression: the error types of the CloudEvents SQL specification 1.0.0, section 3.3."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from conduit_tasks.errors import ConfigError


class Kind(StrEnum):
    """Error types, by the names of the conformance suite."""

    parse = "parse"
    math = "math"
    cast = "cast"
    missing_function = "missingFunction"
    function_evaluation = "functionEvaluation"
    missing_attribute = "missingAttribute"
    generic = "generic"


class Fault(NamedTuple):
    """One error of an evaluation; it comes with the result and never replaces it."""

    kind: Kind
    message: str


class ParseError(ConfigError):
    """The text is no expression. `line` and `column` count from 1."""

    kind = Kind.parse

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"CloudEvents SQL, line {line}, column {column}: {reason}")
        self.reason, self.line, self.column = reason, line, column
