"""A pipeline whose file changes, and runs that leave something in flight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from tests.micro_batch.harness import here

SOURCE = (
    '{id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, '
    'cloudevents.subject: "{{ .Payload.After.k }}"}}'
)
TRIGGER = '{exact: {subject: "3"}}'


def destination(id: str, path: str = "", more: str = "") -> str:
    """A file destination that writes payloads to out/<id>.jsonl unless told otherwise; `more`: further keys."""
    settings = f"settings: {{path: out/{path or id}.jsonl, format: payload}}"
    return f"{{id: {id}, type: destination, plugin: file, {settings}{more and ', ' + more}}}"


A, B = destination("a"), destination("b")


def file_of(*connectors: str, id: str = "p", more: str = "") -> str:
    """A pipeline file; `more`: lines of keys of the pipeline."""
    head = ['version: "2.2"', "pipelines:", f"  - id: {id}", *(f"    {line}" for line in more.splitlines())]
    return "\n".join([*head, "    connectors:", *(f"      - {connector}" for connector in connectors)]) + "\n"


def write(home: Path, text: str, name: str = "p") -> Path:
    """Puts a file where the DAG reads it."""
    path = home / "include/pipelines" / f"{name}.yaml"
    path.write_text(text)
    return path


def read(pipeline: str = "p", run: str = "fill") -> None:
    """Plans, reads, processes and seals; delivers nothing."""
    assert plan_run(pipeline, run).work
    with opened(pipeline, run) as context:
        for source in context.pipeline.sources:
            read_source(context, source.id, here, 5.0)
        if context.pipeline.processors:
            process(context, here, 5.0)


def deliver(*destinations: str, pipeline: str = "p", run: str = "fill") -> None:
    """Delivers what is sealed to these."""
    for id in destinations:
        with opened(pipeline, run) as context:
            deliver_destination(context, id, here, run=run, wait=120.0, cleared=False, progress=lambda **_: None)


def conduit(*arguments: str | Path) -> Result:
    """Runs `conduit …` in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def planned(file: Path, code: int | None = None) -> dict[str, Any]:
    """What `conduit plan` says of the one pipeline of a file, after checking its exit code."""
    result = conduit("plan", file, "--format", "json")
    assert code is None or result.exit_code == code, result.output
    (found,) = json.loads(result.stdout)
    return dict(found)


def changes(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """(node, first word of what) → change."""
    return {(c["node"], c["what"].partition(" ")[0]): c for c in found["changes"]}


def applied(*arguments: str | Path, code: int = 0) -> Result:
    result = conduit("apply", *arguments, "--deadline", "0")
    assert result.exit_code == code, (result.output, result.exception)
    return result
