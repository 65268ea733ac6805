"""`conduit plan FILE`: what a changed pipeline file does to pipelines with data in flight."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.output import Format, fail, note, print_json, print_table

if TYPE_CHECKING:
    from conduit_tasks.changes.plan import Plan
    from conduit_tasks.pipeline.topology import Pipeline

DECIDE = 3
"""Exit code where something has to be decided."""

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "left": "!"}

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file; it need not be in the pipelines' folder.")]
Id = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Only this pipeline of it.")]


def plan(
    file: File,
    pipeline: Id = None,
    format: Annotated[Format, typer.Option(help="text or json")] = Format.text,
) -> None:
    """Shows what a changed file does to what is in flight, compared with the version in force. Changes nothing.

    Exit code 0: nothing to do, or nothing of it loses or doubles an event. 1: an error. 2: the file cannot be read or
    is wrong. 3: something has to be decided: see `conduit apply`.
    """
    plans = [_plan(found) for found in load(file, pipeline)]
    if format is Format.json:
        print_json([found.to_dict() for found in plans])
    else:
        for found in plans:
            show(found)
    if any(found.decisions for found in plans):
        raise typer.Exit(DECIDE)


def load(file: Path, pipeline: str | None) -> list[Pipeline]:
    """The pipelines of a file that has no error; exits with 2 where it has."""
    from conduit_tasks.pipeline.load import load_file

    result = load_file(file, plugins=True)
    found = [p for p in result.pipelines if pipeline in (None, p.id)]
    if result.errors:
        fail(f"{result.errors[0]}; see `conduit validate {file}`")
    elif not found:
        ids = ", ".join(p.id for p in result.pipelines)
        fail(f"{file} holds no pipeline {pipeline}; it has {ids}" if pipeline and ids else f"{file} holds no pipeline")
    else:
        return found
    raise typer.Exit(2)


def _plan(pipeline: Pipeline) -> Plan:
    from conduit_tasks.changes.plan import plan_change
    from conduit_tasks.micro_batch.context import open_broker

    broker = open_broker(pipeline.id, initialise=False)
    try:
        return plan_change(pipeline, broker)
    finally:
        broker.close()


def show(plan: Plan) -> None:
    """Prints a plan for people."""
    if not plan.known:
        print(f"{plan.pipeline}: has not run yet; it begins with version {plan.digest}")
        return
    if plan.now is None:
        print(f"{plan.pipeline}: no version is recorded, so only connectors that come or go are known")
    else:
        since = datetime.fromtimestamp(plan.now.since, UTC).isoformat(timespec="seconds")
        print(f"{plan.pipeline}: version {plan.now.digest} is in force since {since}")
        if plan.now.digest != plan.digest:
            print(f"{plan.pipeline}: the file is version {plan.digest}")
    if not plan.changes:
        print(f"{plan.pipeline}: nothing to do")
        return
    print()
    print_table(
        ("", "change", "in flight", "safe"),
        [
            (
                _SIGNS[change.kind],
                change.node if change.what in ("source", "destination") else f"{change.node}: {change.what}",
                ", ".join(str(of) for of in change.in_flight.values()) or "-",
                "yes" if change.safe else "decide",
            )
            for change in plan.changes
        ],
    )
    print()
    for change in plan.changes:
        print(f"{change.node}: {change.effect}")
        if change.decision:
            print(f"    decide: {change.decision}")
    if plan.decisions:
        note(f"{len(plan.decisions)} to decide")
