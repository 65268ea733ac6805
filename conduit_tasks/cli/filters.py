"""`conduit filters`: tries a trigger's filter on events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from conduit_tasks.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Try trigger filters on events.")

Answer = dict[str, Any]
Test = Callable[[dict[str, Any]], Answer]


@app.command(name="try")
def try_(
    sql: Annotated[str | None, typer.Option("--sql", metavar="EXPR", help="A CloudEvents SQL expression.")] = None,
    filter: Annotated[
        str | None, typer.Option("--filter", metavar="JSON", help="A filter, or a list of filters, as in a trigger.")
    ] = None,
) -> None:
    """Reads CloudEvents in JSON, one per line, and prints one JSON object per line.

    `{"result": …}`, or after an error `{"error": KIND, "message": …, "result": …}` with KIND parse, math,
    cast, missingFunction, functionEvaluation, missingAttribute or generic. A trigger wants the event only if the
    result is true and there is no error. For an expression that cannot be parsed, every event gets the parse error.
    """
    import orjson

    if (sql is None) == (filter is None):
        raise ConfigError("conduit filters try: give exactly one of --sql EXPR and --filter JSON")
    test = _expression(sql) if sql is not None else _filter(str(filter))
    for answer in _answers(test, sys.stdin.buffer):
        # Lines are answered as they come, so that the command can stand in a pipe.
        print(orjson.dumps(answer).decode(), flush=True)


def _answers(test: Test, lines: Iterable[bytes]) -> Iterable[Answer]:
    import orjson

    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            yield _error("generic", f"line {number} is not JSON: {error}")
            continue
        if not isinstance(event, dict):
            yield _error("generic", f"line {number} is no JSON object, so it is no event")
            continue
        yield test({name: value for name, value in event.items() if value is not None})


def _expression(text: str) -> Test:
    from conduit_tasks.filters.cesql import ParseError, compile

    try:
        expression = compile(text)
    except ParseError as error:
        answer = _error(error.kind, str(error))
        return lambda view: answer

    def test(view: dict[str, Any]) -> Answer:
        result, kind, message = expression.evaluate(view)
        return {"result": result} if kind is None else {"error": kind, "message": message, "result": result}

    return test


def _filter(text: str) -> Test:
    import orjson

    from conduit_tasks.filters import compile_filters

    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--filter is not JSON: {error}") from None
    matcher = compile_filters(content if isinstance(content, list) else [content])
    return lambda view: {"result": matcher.matches(view)}


def _error(kind: str, message: str) -> Answer:
    return {"error": kind, "message": message, "result": False}
