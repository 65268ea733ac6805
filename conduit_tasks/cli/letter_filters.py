"""Options by which the commands of dead letters select, the same for all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_tasks.dead_letters.select import selection as selected

if TYPE_CHECKING:
    pass

FILTERS: dict[str, Any] = {
    "destination": Annotated[
        str | None, typer.Option(help="Only of this destination; `_pipeline`: what failed before the fan-out.")
    ],
    "classes": Annotated[
        list[str] | None, typer.Option("--class", "--error-class", help="Only of this error class, such as `http 400`.")
    ],
    "since": Annotated[str | None, typer.Option(help="Only from then on: a date, or so long ago (2h, 1d).")],
    "until": Annotated[str | None, typer.Option(help="Only from before then.")],
    "keys": Annotated[
        list[str] | None, typer.Option("--key", help="Only of records with this key: its text, or its JSON.")
    ],
    "micro_batches": Annotated[list[int] | None, typer.Option("--micro-batch", help="Only of this micro-batch.")],
    "issues": Annotated[list[str] | None, typer.Option("--issue", help="Only of this issue, see `conduit issues`.")],
    "ids": Annotated[list[str] | None, typer.Option("--id", help="Only of the record with this id.")],
}
"""Options by which every command selects."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command: its parameter `selection` is made from the options FILTERS."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(selection=selected(**{name: given.pop(name) for name in FILTERS}), **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "selection"]
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(n, kind, default=None, annotation=a) for n, a in FILTERS.items()]
    positional = [p for p in own if p.kind is not kind]
    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [*positional, *options, *(p for p in own if p.kind is kind)]
    )
    wrapper.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
    return wrapper
