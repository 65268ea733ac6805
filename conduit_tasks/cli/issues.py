"""`conduit issues`: dead letters and failed tasks grouped by their cause, and what somebody decided about each."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conduit_tasks.cli.arguments import Pipeline, PipelineOrAll
from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.broker.issues import DecisionState
    from conduit_tasks.dead_letters.issues import Issue
    from conduit_tasks.micro_batch.context import Context

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Failures of one cause: look, decide. Without a command: list the open ones of all pipelines.",
)
MOST = 50
"""Issues of all pipelines that are printed, unless another number is given."""


class Order(StrEnum):
    """Values of `--order`."""

    newest = "newest"
    most = "most"


IssueId = Annotated[str, typer.Argument(metavar="ISSUE", help="The issue's id, as `list` prints it.")]


@app.callback()
def _all(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        _list_all(every=False, order=Order.newest, most=MOST, format=Format.text)


@app.command("list")
def list_(
    pipeline: PipelineOrAll = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are acknowledged, muted or resolved.")] = False,
    order: Annotated[
        Order, typer.Option(help="Of all pipelines: the newest first, or those with the most failures.")
    ] = Order.newest,
    most: Annotated[int, typer.Option(min=1, max=2_000, help="Of all pipelines: so many at most.")] = MOST,
    format: Annotated[Format, typer.Option(help="text or json")] = Format.text,
) -> None:
    """List the issues of PIPELINE, or of all: dead letters and failed attempts at tasks, by node, class and shape of
    message. Exit code 1 if one is open."""
    if pipeline is None:
        _list_all(every=every, order=order, most=most, format=format)
        return
    from conduit_tasks.micro_batch.context import opened

    with opened(pipeline, "issues") as context:
        found = _issues(context)
    from conduit_tasks.dead_letters.issues import as_json

    shown = [issue for issue in found if every or issue.state == "open"]
    if format is Format.json:
        print_json([as_json(issue) for issue in shown])
    else:
        headers = ["issue", "of", "state", "count", "keys", "first", "last", "node", "class", "message"]
        print_table(headers, [_row(issue) for issue in shown])
        for issue in shown:
            if issue.log:
                well = f"; it has succeeded since, at {issue.succeeded[:19]}" if issue.succeeded else ""
                note(f"{issue.id}, {logged(issue.log)}: {issue.sample['error']}{well}")
            note(f"{issue.id}: {issue.advice}")
        if any(issue.kind == "dead letters" for issue in shown):
            note(f"`conduit dead-letters list {pipeline} --issue ISSUE` lists its letters, `redrive` sends them again")
    if any(issue.state == "open" for issue in found):
        raise typer.Exit(1)


def _list_all(*, every: bool, order: Order, most: int, format: Format) -> None:
    from conduit_tasks.operate.all_issues import Wanted, everywhere
    from conduit_tasks.pipeline.load import load_folder
    from conduit_tasks.redis_client.connection import connect
    from conduit_tasks.settings import settings

    loaded = load_folder(settings().path(settings().pipelines))
    redis = connect(settings())
    pipelines = sorted(loaded.pipelines, key=lambda p: p.id)
    try:
        wanted = Wanted(None if every else "open", order=order.value)
        with _progress([each.id for each in pipelines]) as looking:
            found = everywhere(redis, pipelines, wanted, looking=looking)
    finally:
        redis.close()
    shown = found.issues[:most]
    if format is Format.json:
        print_json([each.as_json() for each in shown])
    else:
        headers = ["pipeline", "issue", "of", "state", "count", "keys", "first", "last", "node", "class", "message"]
        print_table(headers, [(of.pipeline, *_row(of.issue)) for of in shown])
        note(f"{found.open:,} open, in {found.pipelines:,} of {len(loaded.pipelines):,} pipelines")
        if shown:
            note("`conduit issues list PIPELINE` says what to do about each")
    if found.total > len(shown):
        note(f"{found.total - len(shown):,} more: give --most, or a pipeline")
    for pipeline, why in found.unread.items():
        note(f"the dead letters of {pipeline} cannot be read: {why}")
    if loaded.errors:
        note("files with errors are left out: `conduit validate` says what is wrong")
    if found.open or found.unread:
        raise typer.Exit(1)


@contextmanager
def _progress(ids: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows in a terminal which pipeline is looked through; the line is gone afterwards."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    numbers = {id: number for number, id in enumerate(ids, 1)}
    with Console(stderr=True).status("looking through dead letters") as shown:
        yield lambda id: shown.update(
            f"looking through the dead letters of pipeline {numbers[id]:,} of {len(numbers):,}"
        )


def _row(i: Issue) -> tuple[Any, ...]:
    return i.id, i.kind, _state(i), i.count, i.affected, i.first[:19], i.last[:19], i.node, i.error_class, i.shape


@app.command()
def acknowledge(pipeline: Pipeline, issue: IssueId) -> None:
    """Say that somebody looks after it: it is in the list with `--all` only."""
    _decide(pipeline, issue, "acknowledged")


@app.command()
def mute(
    pipeline: Pipeline,
    issue: IssueId,
    until: Annotated[str | None, typer.Option("--for", help="So long (2h, 7d); default: until it is opened.")] = None,
) -> None:
    """Leave an issue out of the list for a while."""
    from conduit_tasks.record.units import parse_duration

    _decide(pipeline, issue, "muted", None if until is None else time.time() + parse_duration(until))


@app.command()
def resolve(pipeline: Pipeline, issue: IssueId) -> None:
    """Say that its cause is gone: it is open again if it is seen again."""
    _decide(pipeline, issue, "resolved")


@app.command("open")
def open_(pipeline: Pipeline, issue: IssueId) -> None:
    """Take back what was decided."""
    _decide(pipeline, issue, "open")


def _decide(pipeline: str, id: str, state: DecisionState | Literal["open"], until: float | None = None) -> None:
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.operate.issues import is_one, stored

    with opened(pipeline, "issues") as context:
        if not is_one(id, stored(context), context.broker):
            raise ConfigError(f"{pipeline} has no issue {id[:40]!r}; `conduit issues list {pipeline} --all` prints ids")
        context.broker.issues.decide(id, state, f"{getpass.getuser()}@{socket.gethostname()}", until)
    note(f"{id}: {state}")


def _issues(context: Context) -> list[Issue]:
    from conduit_tasks.operate.issues import stored, together

    return together(stored(context), context.broker)


def _state(issue: Issue) -> str:
    """Returns the state of an issue; of a mute, how long it is to last."""
    if issue.state != "muted" or issue.decision is None:
        return issue.state
    until = issue.decision.until
    return f"muted until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M}" if until else "muted until opened"


def logged(log: Mapping[str, Any]) -> str:
    """Returns where the log of a failed attempt is, in words."""
    mapped = f" [{log['map_index']}]" if log["map_index"] >= 0 else ""
    return f"try {log['try']} of {log['task']}{mapped} in run {log['run']} of {log['dag']}"
