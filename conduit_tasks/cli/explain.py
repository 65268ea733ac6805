"""`conduit explain`: prints the guarantees of a pipeline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from conduit_tasks.cli.arguments import PipelineOrFile
from conduit_tasks.cli.output import print_json
from conduit_tasks.errors import ConfigError
from conduit_tasks.topology import Pipeline


class ExplainFormat(StrEnum):
    """Values of `--format`."""

    text = "text"
    json = "json"
    mermaid = "mermaid"


def explain(
    pipeline: PipelineOrFile,
    format: Annotated[ExplainFormat, typer.Option(help="mermaid: a picture.")] = ExplainFormat.text,
) -> None:
    """Prints nodes, edges and the guarantees of each: guarantee, order, acks, possible duplicates, faults that are not
    tolerated; limits and the treatment of failed records."""
    from conduit_tasks.pipeline import explain as explained

    found = _pipelines(pipeline)
    if format is ExplainFormat.json:
        print_json([explained.explain(p) for p in found])
        return
    show = explained.mermaid if format is ExplainFormat.mermaid else explained.explain_text
    print("\n\n".join(show(p) for p in found))


def _pipelines(name: str) -> list[Pipeline]:
    """Returns all pipelines of a file, otherwise the pipeline with this id. Raises ConfigError if there is an error or
    no pipeline."""
    from conduit_tasks.pipeline.load import get_pipeline, load_file

    if not Path(name).is_file():
        return [get_pipeline(name)]
    result = load_file(name)
    if result.errors:
        raise ConfigError(f"{result.errors[0]}; see `conduit validate {name}`")
    if not result.pipelines:
        raise ConfigError(f"{name} holds no pipeline; see `conduit validate {name}`")
    return result.pipelines
