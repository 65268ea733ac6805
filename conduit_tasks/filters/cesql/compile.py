"""Compiles the grammar's pieces to one closure while the text is parsed; refuses `data`, as the payload is no
attribute."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Transformer, v_args

from conduit_tasks.filters.cesql import arithmetic, grammar, operators
from conduit_tasks.filters.cesql.errors import Fault, Kind, ParseError
from conduit_tasks.filters.cesql.functions import ANY, Function, FunctionFailed, find
from conduit_tasks.filters.cesql.values import MAX, ZERO, CastFailed, Faults, Run, Value, View, cast

REQUIRED = frozenset({"id", "source", "type", "specversion"})
"""Attributes that every event has (CloudEvents 1.0)."""
PAYLOAD = "data"
NO_PAYLOAD = "CloudEvents SQL reads attributes, not data; set an extension from the payload first"
DEPTH = 100
"""Most levels of nesting; deeper is refused, so that an evaluation never reaches Python's recursion limit."""


class Problem(NamedTuple):
    """A part of a valid expression that fails on every event."""

    kind: Kind
    message: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A compiled piece. `type` is None if it depends on the event; `literal` is set for a literal, `attribute` for an
    attribute."""

    run: Run
    type: type | None
    depth: int = 1
    reads: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    literal: Value | None = None
    attribute: str | None = None
    token: Token | None = None
    """Token of the number 2147483648, which is an Integer only after a minus; None for every other piece."""


def _node(run: Run, kind: type | None, *children: Node, problem: Problem | None = None) -> Node:
    """Makes a piece from its children. Raises ParseError if it is nested too deeply."""
    for child in children:
        whole(child)
    depth = 1 + max((child.depth for child in children), default=0)
    if depth > DEPTH:
        raise ParseError(f"the expression is nested deeper than {DEPTH}")
    reads: frozenset[str] = frozenset().union(*(child.reads for child in children))
    problems = tuple(p for child in children for p in child.problems)
    return Node(run, kind, depth, reads, (*problems, problem) if problem else problems)


def whole(node: Node) -> Node:
    """Returns the node. Raises ParseError for the number 2147483648 without a minus."""
    if node.token is not None:
        raise _too_large(node.token)
    return node


def _too_large(token: Token) -> ParseError:
    return ParseError(f"{token} is no 32 bit integer", token.line or 1, token.column or 1)


def _literal(value: Value) -> Node:
    return Node(operators.constant(value), value.__class__, literal=value)


def _unquoted(token: Token) -> str:
    """Returns the text of a literal: a backslash before its quote character escapes it, other backslashes stay."""
    quote = token[0]
    return re.sub(r"\\(.)", lambda found: quote if found[1] == quote else found[0], token[1:-1], flags=re.DOTALL)


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Builder with one method per alternative of the grammar."""

    def start(self, node: Node) -> Node:
        return whole(node)

    def true(self, token: Token) -> Node:
        return _literal(True)

    def false(self, token: Token) -> Node:
        return _literal(False)

    def text(self, token: Token) -> Node:
        return _literal(_unquoted(token))

    def integer(self, token: Token) -> Node:
        digits = token.lstrip("0") or "0"
        if len(digits) > 10 or int(digits) > MAX + 1:
            raise _too_large(token)
        number = int(digits)
        if number == MAX + 1:
            return Node(operators.constant(number), int, literal=number, token=token)
        return _literal(number)

    def positive(self, plus: Token, token: Token) -> Node:
        return whole(self.integer(token))

    def attribute(self, token: Token) -> Node:
        name = token.lower()
        if name == PAYLOAD:
            return _node(_always(Fault(Kind.missing_attribute, NO_PAYLOAD)), None, problem=_no_payload(token))
        return Node(operators.attribute(name), None, reads=frozenset({name}), attribute=name)

    def exists(self, operator: Token, token: Token) -> Node:
        name = token.lower()
        if name == PAYLOAD:
            return _node(operators.constant(False), bool, problem=_no_payload(token))
        if name in REQUIRED:
            return _literal(True)
        return Node(operators.exists(name), bool, reads=frozenset({name}))

    def negation(self, operator: Token, node: Node) -> Node:
        return _node(operators.negation(node.run), bool, node)

    def negative(self, operator: Token, node: Node) -> Node:
        if node.literal.__class__ is int and node.depth == 1 and node.literal != -(MAX + 1):
            return _literal(-node.literal)
        return _node(arithmetic.negative(node.run), int, node)

    def logic(self, first: Node, *rest: Any) -> Node:
        names = [token.upper() for token in rest[::2]]
        nodes = rest[1::2]
        run = operators.logic(first.run, list(zip(names, (node.run for node in nodes))))
        return _node(run, bool, first, *nodes)

    def compare(self, left: Node, token: Token, right: Node) -> Node:
        symbol = str(token)
        if symbol in operators.ORDER:
            return _node(operators.ordered(left.run, right.run, operators.ORDER[symbol]), bool, left, right)
        positive = symbol == "="
        if left.attribute is not None and right.literal is not None:
            run = operators.equals_constant(left.attribute, right.literal, positive)
        else:
            run = operators.equals(left.run, right.run, positive)
        return _node(run, bool, left, right)

    def add(self, left: Node, token: Token, right: Node) -> Node:
        return _node(arithmetic.arithmetic(left.run, right.run, str(token)), int, left, right)

    subtract = multiply = divide = modulo = add

    def like(self, node: Node, operator: Token, pattern: Token) -> Node:
        return _node(operators.like(node.run, _unquoted(pattern), True), bool, node)

    def not_like(self, node: Node, no: Token, operator: Token, pattern: Token) -> Node:
        return _node(operators.like(node.run, _unquoted(pattern), False), bool, node)

    def set(self, *nodes: Node) -> tuple[Node, ...]:
        return nodes

    def within(self, node: Node, operator: Token, elements: tuple[Node, ...]) -> Node:
        return _within(node, elements, True)

    def not_within(self, node: Node, no: Token, operator: Token, elements: tuple[Node, ...]) -> Node:
        return _within(node, elements, False)

    def call(self, token: Token, *arguments: Node | None) -> Node:
        nodes = [node for node in arguments if node is not None]
        function = find(token, len(nodes))
        if function is None:
            message = f"there is no function {token.upper()} with {len(nodes)} argument(s)"
            fault = Fault(Kind.missing_function, message)
            problem = Problem(*fault, token.line or 1, token.column or 1)
            return _node(_always(fault), bool, *nodes, problem=problem)
        return _node(_call(function, [node.run for node in nodes]), function.returns, *nodes)


def _no_payload(token: Token) -> Problem:
    return Problem(Kind.missing_attribute, NO_PAYLOAD, token.line or 1, token.column or 1)


def _within(node: Node, elements: tuple[Node, ...], positive: bool) -> Node:
    texts = frozenset(each.literal for each in elements if isinstance(each.literal, str))
    if all(isinstance(each.literal, str) for each in elements):
        run = operators.within_constants(node.run, texts, positive)
    else:
        run = operators.within(node.run, [each.run for each in elements], positive)
    return _node(run, bool, node, *elements)


def _always(fault: Fault) -> Run:
    def run(view: View, faults: Faults) -> bool:
        faults.append(fault)
        return False

    return run


def _call(function: Function, arguments: list[Run]) -> Run:
    zero = ZERO[function.returns]
    typed = list(zip(arguments, function.types(len(arguments))))

    def run(view: View, faults: Faults) -> Value:
        values = []
        for argument, kind in typed:
            value = argument(view, faults)
            if faults:
                return zero
            if kind is not ANY:
                try:
                    value = cast(value, kind)
                except CastFailed as failed:
                    faults.append(failed.fault)
                    return zero
            values.append(value)
        try:
            return function.call(*values)
        except FunctionFailed as error:
            faults.append(error.fault)
            return error.value

    return run


@cache
def _parser() -> Lark:
    return grammar.parser(_Builder())


def build(text: str) -> Node:
    """Returns the compiled expression. Raises ParseError."""
    node: Node = grammar.parse(_parser(), text)
    return node
