"""`conduit plan | apply FILE`: shows the effects of a changed pipeline file on data in flight, and applies it, with
renames and history for new destinations."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conduit_tasks.cli.arguments import PipelineOfFile
from conduit_tasks.cli.output import Format, fail, note, print_json, print_table
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.changes.apply import Decisions
    from conduit_tasks.changes.plan import Plan
    from conduit_tasks.topology import Pipeline

DECIDE = 3
"""Exit code if something has to be decided."""

EVER = ("1970-01-01", "2200-01-01")
"""Interval of a replay of all history."""

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "left": "!"}

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file; it need not be in the pipelines' folder.")]


def plan(
    file: File,
    pipeline: PipelineOfFile = None,
    format: Annotated[Format, typer.Option(help="text or json")] = Format.text,
) -> None:
    """Shows the effects of a changed file on data in flight, compared with the version in force. Changes nothing.

    Exit code 0: nothing to do, or no change loses or doubles an event. 1: an error. 2: the file cannot be read or is
    wrong. 3: something has to be decided: see `conduit apply`.
    """
    plans = [_plan(found) for found in load(file, pipeline)]
    if format is Format.json:
        print_json([found.to_dict() for found in plans])
    else:
        for found in plans:
            show(found)
    if any(found.decisions for found in plans):
        raise typer.Exit(DECIDE)


def apply(  # noqa: PLR0917 - its options
    file: File,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="A destination goes on under another id.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="May leave; put back into the file, it goes on.")
    ] = None,
    forget: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Left before: its state goes for good.")
    ] = None,
    from_now: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Begins with what is read from now on: the default.")
    ] = None,
    from_history: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Gets what was before it joined, too, by a replay.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the options, show the plan, change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Give up what dropped or forgotten ids have not got.")] = False,
    deadline: Annotated[
        float, typer.Option(min=0, help="Seconds in which what is in flight should be delivered.")
    ] = 60.0,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start again what was running.")] = True,
) -> None:
    """Applies a changed file: drains, stops and changes its pipelines, and starts them again if they were running.

    FILE replaces the pipelines' file in the project's folder. If it is interrupted, the same command again finishes.
    Exit codes as of `conduit plan`; 3: nothing was changed, or a replay of history left dead letters.
    """
    from conduit_tasks.changes.apply import Undecided

    renamed = dict(_pair(text) for text in rename or ())
    found = load(file, None)
    history = _joining(found, from_now or [], from_history or [])
    try:
        asked = [(p, _asked(p, renamed, drop or [], forget or [], yes)) for p in found]
        for p, decisions in asked:
            _check(p, decisions, dry_run)
        if dry_run:
            return
        _apply(file, asked, deadline, start)
    except Undecided as error:
        fail(str(error))
        raise typer.Exit(DECIDE) from None
    replayed = [_replay(p, id) for p, id in history]
    if not all(replayed):
        raise typer.Exit(DECIDE)


def _pair(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not (old and sign and new):
        raise ConfigError(f"--rename {text}: it is OLD=NEW")
    return old, new


def _joining(found: list[Pipeline], now: list[str], history: list[str]) -> list[tuple[Pipeline, str]]:
    """Returns the destinations that are to get history, with their pipelines. Raises ConfigError for contradicting or
    unknown ids."""
    if both := sorted({*now} & {*history}):
        raise ConfigError(f"--from-now {both[0]} and --from-history {both[0]}: one of the two")
    ids = {d.id for p in found for d in p.destinations}
    if strange := [id for id in [*now, *history] if id not in ids]:
        raise ConfigError(f"the file has no destination {strange[0]}; it has {', '.join(sorted(ids))}")
    return [(p, id) for p in found for id in history if any(d.id == id for d in p.destinations)]


def _asked(p: Pipeline, renamed: dict[str, str], drop: list[str], forget: list[str], yes: bool) -> Decisions:
    """Returns the decisions of the options for this pipeline of the file."""
    from conduit_tasks.changes.apply import Decisions

    ids = {d.id for d in p.destinations}
    mine = {old: new for old, new in renamed.items() if new in ids}
    return Decisions(mine, frozenset(drop), frozenset(forget), yes)


def _check(p: Pipeline, decisions: Decisions, print_it: bool) -> None:
    from conduit_tasks.changes.apply import check
    from conduit_tasks.changes.plan import plan_change
    from conduit_tasks.micro_batch.context import open_broker

    broker = open_broker(p.id, initialise=False)
    try:
        found = plan_change(p, broker)
        if print_it:
            show(found)
        check(p, found, broker, decisions)
    finally:
        broker.close()


def _apply(file: Path, asked: list[tuple[Pipeline, Decisions]], deadline: float, start: bool) -> None:
    from conduit_tasks.changes import apply as applying
    from conduit_tasks.cli.status import wake

    for p, decisions in asked:
        name = p.id
        applying.apply(
            file,
            p,
            decisions,
            deadline=deadline,
            wake=wake,
            start=start,
            step=lambda said, name=name: note(f"{name}: {said}"),  # type: ignore[misc]
        )


def _replay(p: Pipeline, id: str) -> bool:
    """Replays history to a destination, up to the beginning of its live stream, and returns whether no record became a
    dead letter. Called again it goes on, and sends nothing twice."""
    from conduit_tasks.resend.replay import replay

    outcomes = replay(p.id, EVER[0], EVER[1], [id], "missing", run=f"apply__{id}", wait=120.0)
    for o in outcomes:
        note(f"{p.id}: {id} got {o.delivered:,} records of history, {o.dead:,} became dead letters")
    return not any(o.dead for o in outcomes)


def load(file: Path, pipeline: str | None) -> list[Pipeline]:
    """Loads the pipelines of a file; exits with 2 if it has an error, also together with the other files of the
    folder."""
    from conduit_tasks.changes.apply import check_beside
    from conduit_tasks.pipeline.load import load_file

    result = load_file(file, plugins=True)
    found = [p for p in result.pipelines if pipeline in (None, p.id)]
    if result.errors:
        fail(f"{result.errors[0]}; see `conduit validate {file}`")
    elif not found:
        ids = ", ".join(p.id for p in result.pipelines)
        fail(f"{file} holds no pipeline {pipeline}; it has {ids}" if pipeline and ids else f"{file} holds no pipeline")
    else:
        try:
            check_beside(file, result.pipelines)
        except ConfigError as error:
            fail(str(error))
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
