"""Closures compiled from expressions; the frequent shapes have closures of their own (a condition costs < 3 µs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.record.record import Record
from conduit_tasks.templates import values
from conduit_tasks.templates.values import RECORD_FIELDS, field, truth

Eval = Callable[[Any, list[Any]], Any]

__all__ = ["RECORD_FIELDS", "Expression", "call", "constant", "dot", "dot_field", "fields", "variable"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression: `f(dot, env)` returns its value. `names`: its path of fields, if it is only a field of
    dot."""

    f: Eval
    is_constant: bool = False
    value: Any = None
    names: tuple[str, ...] = ()


def constant(value: Any) -> Expression:
    return Expression(lambda dot, env: value, True, value)


def dot() -> Expression:
    return Expression(lambda dot, env: dot)


def variable(slot: int) -> Expression:
    return Expression(lambda dot, env: env[slot])


def fields(base: Expression, names: Sequence[str]) -> Expression:
    """Returns the expression for fields of any value, as in `$x.a.b` and `(index .a 0).b`."""
    if not names:
        return base
    inner = base.f

    def get(dot: Any, env: list[Any]) -> Any:
        value = inner(dot, env)
        for name in names:
            value = field(value, name)
        return value

    return Expression(get)


def dot_field(names: Sequence[str]) -> Expression:
    """Returns the expression for fields of dot: `.Payload.After.x`."""
    path = tuple(names)
    general = fields(dot(), path).f
    match path:
        case ("Payload", "After"):
            return Expression(_after(general), names=path)
        case ("Payload", "After", name):
            return Expression(_after_field(name, general), names=path)
        case ("Metadata", name):
            return Expression(_metadata(name, general), names=path)
    return Expression(general, names=path)


# Inside `with` and `range`, dot may be a map that happens to have a field Payload: then `general` reads it.


def _after(general: Eval) -> Eval:
    return lambda dot, env: dot.after if dot.__class__ is Record else general(dot, env)


def _after_field(name: str, general: Eval) -> Eval:
    def get(dot: Any, env: list[Any]) -> Any:
        if dot.__class__ is Record:
            after = dot.after
            if after.__class__ is dict:
                return after.get(name)
        return general(dot, env)

    return get


def _metadata(name: str, general: Eval) -> Eval:
    def get(dot: Any, env: list[Any]) -> Any:
        if dot.__class__ is Record:
            own = dot.metadata
            return own[name] if name in own else dot.origin.metadata.get(name)
        return general(dot, env)

    return get


def call(  # noqa: PLR0911 - one line per shape of a call
    name: str, function: Callable[..., Any], arguments: Sequence[Expression]
) -> Expression:
    """Returns the expression for a call with these arguments; a piped value is the last of them."""
    match name, arguments:
        case "and" | "or", _:
            return Expression(_short_circuit([a.f for a in arguments], name == "or"))
        case "not", [one]:
            f = one.f
            return Expression(lambda dot, env: not truth(f(dot, env)))
        case "index", [base, key] if base.names == ("Metadata",) and isinstance(key.value, str):
            return dot_field(("Metadata", key.value))
        case ("eq" | "ne") as which, [left, right] if right.is_constant or left.is_constant:
            operand, fixed = (left, right.value) if right.is_constant else (right, left.value)
            return Expression(_equal_constant(operand.f, fixed, which == "eq"))
        case (("lt" | "le" | "gt" | "ge"), [left, right]) if right.is_constant and right.value.__class__ in (
            int,
            float,
        ):
            return Expression(_ordered_constant(name, left.f, right.value, function))
        case _, []:
            return Expression(lambda dot, env: function())
        case _, [one]:
            f = one.f
            return Expression(lambda dot, env: function(f(dot, env)))
        case _, [one, two]:
            f, g = one.f, two.f
            return Expression(lambda dot, env: function(f(dot, env), g(dot, env)))
    parts = [a.f for a in arguments]
    return Expression(lambda dot, env: function(*[part(dot, env) for part in parts]))


def _short_circuit(parts: list[Eval], stop_at: bool) -> Eval:
    if len(parts) == 2:
        first, second = parts
        if stop_at:
            return lambda dot, env: first(dot, env) or second(dot, env)
        return lambda dot, env: first(dot, env) and second(dot, env)

    def evaluate(dot: Any, env: list[Any]) -> Any:
        value = None
        for part in parts:
            value = part(dot, env)
            if truth(value) is stop_at:
                return value
        return value

    return evaluate


def _equal_constant(f: Eval, fixed: Any, positive: bool) -> Eval:
    kind = fixed.__class__
    if fixed is None:
        return (lambda dot, env: f(dot, env) is None) if positive else (lambda dot, env: f(dot, env) is not None)

    def evaluate(dot: Any, env: list[Any]) -> bool:
        value = f(dot, env)
        if value.__class__ is kind:
            return (value == fixed) is positive
        return values.equal(value, fixed) is positive

    return evaluate


def _ordered_constant(name: str, f: Eval, fixed: float, function: Callable[[Any, Any], bool]) -> Eval:
    def lt(dot: Any, env: list[Any]) -> bool:
        value = f(dot, env)
        return value < fixed if value.__class__ is int or value.__class__ is float else function(value, fixed)

    def le(dot: Any, env: list[Any]) -> bool:
        value = f(dot, env)
        return value <= fixed if value.__class__ is int or value.__class__ is float else function(value, fixed)

    def gt(dot: Any, env: list[Any]) -> bool:
        value = f(dot, env)
        return value > fixed if value.__class__ is int or value.__class__ is float else function(value, fixed)

    def ge(dot: Any, env: list[Any]) -> bool:
        value = f(dot, env)
        return value >= fixed if value.__class__ is int or value.__class__ is float else function(value, fixed)

    return {"lt": lt, "le": le, "gt": gt, "ge": ge}[name]
