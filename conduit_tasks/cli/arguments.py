"""Arguments that several commands take: the name of a pipeline, checked before anything is asked."""

from __future__ import annotations

import os.path
from typing import Annotated

import typer

from conduit_tasks.pipeline.names import ID_LETTERS, is_id

_SHOWN = 60
"""Length up to which a wrong name is shown."""


def _id(name: str | None) -> str | None:
    """Returns the name of a pipeline. Raises BadParameter if no pipeline can have it."""
    if name is not None and not is_id(name):
        raise typer.BadParameter(f"'{_short(name)}' is not the id of a pipeline: {ID_LETTERS}.")
    return name


def _id_or_file(name: str) -> str:
    # A name that is too long for a file is none, without an error.
    if not is_id(name) and not os.path.isfile(name):
        raise typer.BadParameter(f"'{_short(name)}' is no file, nor the id of a pipeline: {ID_LETTERS}.")
    return name


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"


Pipeline = Annotated[str, typer.Argument(help="Id of the pipeline.", callback=_id)]
PipelineOrAll = Annotated[str | None, typer.Argument(help="Id of the pipeline. Default: all.", callback=_id)]
PipelineOfFile = Annotated[
    str | None, typer.Argument(metavar="[PIPELINE]", help="Only this pipeline of it.", callback=_id)
]
PipelineOrFile = Annotated[
    str,
    typer.Argument(metavar="PIPELINE|FILE", help="A pipeline's id, or a file (all of it).", callback=_id_or_file),
]
