"""`conduit replay`: sends an interval of records again, to chosen destinations (SEMANTICS X3)."""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import end_process, note, print_table


def replay(
    pipeline: Pipeline,
    *,
    start: Annotated[str, typer.Option("--from", help="First event time: a date, or a date and time (UTC).")],
    end: Annotated[str, typer.Option("--to", help="Up to this event time, which is not inside.")],
    destinations: Annotated[
        list[str] | None, typer.Option("--destinations", help="Only to these; repeat it, or separate by commas.")
    ] = None,
    what: Annotated[
        str, typer.Option(help="missing: what a destination never got; failed: its dead letters; all: everything.")
    ] = "missing",
    run: Annotated[str | None, typer.Option(help="Name of this replay; the same name goes on with it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would go, and change nothing.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a live delivery to hand over.")] = 120.0,
) -> None:
    """Send the records of an interval again; live positions do not move.

    Called again after a crash, it goes on; called again after it ended, it starts from the beginning. Exit code 0 if no
    record became a dead letter, 3 if one did.
    """
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.halting import ended_by_force
    from conduit_tasks.resend.interval import ask
    from conduit_tasks.resend.replay import look
    from conduit_tasks.resend.replay import replay as replaying

    chosen = [name for text in destinations or () for name in text.split(",") if name]
    if dry_run:
        with opened(pipeline, "replay, dry run") as context:
            made, would = look(context, ask(context.pipeline, start, end, chosen, what))
        _say(made.counts)
        print_table(["destination", "would go"], list(would.items()))
        return
    with ended_by_force(end_process):
        outcomes = replaying(
            pipeline,
            start,
            end,
            chosen,
            what,
            run=run or f"replay__{start}__{end}__{what}",
            wait=wait,
            progress=lambda made: _say(made.counts),
        )
    print_table(
        ["destination", "records", "delivered", "filtered", "dead letters"],
        [(o.destination, o.chosen, o.delivered, o.filtered, o.dead) for o in outcomes],
    )
    if any(o.dead for o in outcomes):
        raise typer.Exit(3)


def _say(counts: dict[str, int]) -> None:
    note(f"{counts.get('chosen', 0):,} of {counts.get('read', 0):,} records lie in the interval")
    if undated := counts.get("undated"):
        note(f"{undated:,} have no event time, and are not replayed")
    if nacked := counts.get("nacked"):
        note(f"{nacked:,} failed before the fan-out, and are not replayed: see `conduit dead-letters`")
