"""Closures compiled from the text, actions and blocks of a template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conduit_tasks.errors import RecordError
from conduit_tasks.templates.expressions import Expression
from conduit_tasks.templates.values import show, truth

Node = Callable[[Any, list[Any], list[str]], str | None]
"""`f(dot, env, out)` appends text to `out`; returns None, BREAK or CONTINUE."""

BREAK, CONTINUE = "break", "continue"
MOST = 1_000_000
"""Limit of the numbers that `range` counts over."""


def literal(text: str) -> Node:
    return lambda dot, env, out: out.append(text)


def print_(value: Expression) -> Node:
    f = value.f
    return lambda dot, env, out: out.append(show(f(dot, env)))


def assign(slot: int, value: Expression) -> Node:
    f = value.f

    def assign(dot: Any, env: list[Any], out: list[str]) -> None:
        env[slot] = f(dot, env)

    return assign


def keep(slot: int, value: Expression) -> Expression:
    f = value.f

    def keep(dot: Any, env: list[Any]) -> Any:
        env[slot] = f(dot, env)
        return env[slot]

    return Expression(keep)


def _run(nodes: list[Node], dot: Any, env: list[Any], out: list[str]) -> str | None:
    for node in nodes:
        signal = node(dot, env, out)
        if signal:
            return signal
    return None


def if_(value: Expression, body: list[Node], other: list[Node]) -> Node:
    f = value.f
    return lambda dot, env, out: _run(body if truth(f(dot, env)) else other, dot, env, out)


def with_(value: Expression, body: list[Node], other: list[Node]) -> Node:
    f = value.f

    def with_(dot: Any, env: list[Any], out: list[str]) -> str | None:
        inner = f(dot, env)
        return _run(body, inner, env, out) if truth(inner) else _run(other, dot, env, out)

    return with_


def loop(value: Expression, body: list[Node], other: list[Node], element: int | None, position: int | None) -> Node:
    f = value.f

    def loop(dot: Any, env: list[Any], out: list[str]) -> str | None:
        items = _items(f(dot, env))
        if not items:
            return _run(other, dot, env, out)
        for key, item in items:
            if element is not None:
                env[element] = item
            if position is not None:
                env[position] = key
            if _run(body, item, env, out) == BREAK:
                break
        return None

    return loop


def _items(value: Any) -> list[tuple[Any, Any]]:
    match value:
        case None:
            return []
        case dict():
            return sorted(value.items())
        case list():
            return list(enumerate(value))
        case int() if not isinstance(value, bool):
            if value > MOST:
                raise RecordError(f"range counts to 1,000,000 at most, not to {value}")
            return [(i, i) for i in range(value)]
    raise RecordError(f"range cannot iterate over a value of type {type(value).__name__}")
