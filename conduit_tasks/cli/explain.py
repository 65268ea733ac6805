"""`conduit explain`: what a pipeline promises."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.output import print_json
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.topology import Pipeline


class ExplainFormat(StrEnum):
    """Values of `--format`."""

    text = "text"
    json = "json"
    mermaid = "mermaid"


def explain(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE|FILE", help="A pipeline's id, or a file (all of it).")],
    format: Annotated[ExplainFormat, typer.Option(help="mermaid: a picture.")] = ExplainFormat.text,
) -> None:
    """Prints nodes, edges and what holds on each: guarantee, order, acks, where duplicates can arise, what is not
    tolerated; limits and what failed records do."""
    from conduit_tasks.pipeline import explain as explained

    found = _pipelines(pipeline)
    if format is ExplainFormat.json:
        print_json([explained.explain(p) for p in found])
        return
    show = explained.mermaid if format is ExplainFormat.mermaid else explained.explain_text
    print("\n\n".join(show(p) for p in found))


def _pipelines(name: str) -> list[Pipeline]:
    """Of a file, all; otherwise the one with this id. Raises ConfigError where there is none without an error."""
    from conduit_tasks.pipeline.load import get_pipeline, load_file

    if not Path(name).is_file():
        return [get_pipeline(name)]
    result = load_file(name)
    if result.errors:
        raise ConfigError(f"{result.errors[0]}; see `conduit validate {name}`")
    if not result.pipelines:
        raise ConfigError(f"{name} holds no pipeline; see `conduit validate {name}`")
    return result.pipelines
