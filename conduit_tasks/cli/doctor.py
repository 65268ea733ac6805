"""`conduit doctor`: says what is missing or misconfigured in an installation."""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, note, print_json, print_table

SIGNS = {"good": "✓", "wrong": "✗", "doubtful": "!", "unknown": "?"}


def doctor(
    executors: Annotated[
        bool, typer.Option("--executors", help="Also start a Spark job: do executors see Redis and the spool?")
    ] = False,
    format: Annotated[
        Format, typer.Option(help="text: what was found and what to do; json for programs.")
    ] = Format.text,
) -> None:
    """Says what is missing or misconfigured in this installation, and what to do about each.

    Call it where Airflow's components run, with their environment. Exit code 0: nothing is wrong (there may be doubts).
    1: something is wrong. 2: nothing is wrong, but something could not be looked at from here.
    """
    from conduit_tasks.cli.checks import everything

    found = list(everything(executors=executors))
    if format is Format.json:
        print_json([each.as_dict() for each in found])
    else:
        print_table(("", "WHAT", "FOUND"), [(SIGNS[each.state], each.what, each.found) for each in found])
        for each in found:
            if each.state != "good":
                note(f"{SIGNS[each.state]} {each.what}: {each.todo}")
    states = {each.state for each in found}
    if "wrong" in states:
        raise typer.Exit(1)
    if "unknown" in states:
        raise typer.Exit(2)
