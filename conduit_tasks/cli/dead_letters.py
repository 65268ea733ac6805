"""`conduit dead-letters`: records that could not be delivered: list, export, send again, give up (SEMANTICS C14, X2).

All commands but `show` take the same filters. The broker's index says which letters are *open*; the letters are in the
project's own store, also letters that a `dead-letter-queue` with a plugin writes; the plugin itself is not read.
"""

from __future__ import annotations

import getpass
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.letter_filters import filtered
from conduit_tasks.cli.output import Format, end_process, note, print_json, print_table
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.book import Book, LetterEntry
    from conduit_tasks.dead_letters.marks import Marks
    from conduit_tasks.dead_letters.store import DeadLetterStore

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="What could not be delivered."
)

Every = Annotated[bool, typer.Option("--all", help="Also those that are dead letters no more.")]


class FileFormat(StrEnum):
    """Values of `export --format`."""

    jsonl = "jsonl"
    parquet = "parquet"


@app.command("list")
@filtered
def list_(
    pipeline: Pipeline,
    *,
    selection: Selection,
    every: Every = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, oldest first.")] = 100,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.text,
) -> None:
    """List the dead letters of PIPELINE, each once."""
    from conduit_tasks.dead_letters.book import whole

    with _opened(pipeline, selection) as (stores, _, book):
        found = book.select(selection, every=every)
        shown = found[:limit]
        if format is Format.json:
            print_json([_whole(entry) for entry in whole(stores[0], shown)])
        else:
            headers = ["destination", "micro-batch", "record", "at", "attempts", "class", "error", "state", "id"]
            print_table(headers, [_line(entry) for entry in shown])
            note(_counted(found, every, pipeline) + (f", {limit:,} shown" if len(found) > limit else ""))
        _say_differences(book)


@app.command()
def show(pipeline: Pipeline, id: Annotated[str, typer.Argument(help="A record's id, as `list` prints it.")]) -> None:
    """Show one record's whole letters, as JSON: record, position, error, node, attempts, and its redrive."""
    from conduit_tasks.dead_letters.book import whole

    selection = Selection(ids=(id,))
    with _opened(pipeline, selection) as (stores, _, book):
        found = whole(stores[0], book.select(selection, every=True))
    if not found:
        raise ConfigError(f"{pipeline} has no dead letter of a record {id}; `conduit dead-letters list` prints ids")
    print_json([_whole(entry) for entry in found])


@app.command()
@filtered
def count(
    pipeline: Pipeline,
    *,
    selection: Selection,
    every: Every = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.text,
) -> None:
    """Count the dead letters of PIPELINE by destination and error class, and the keys parked behind them."""
    with _opened(pipeline, selection) as (_, broker, book):
        found = book.select(selection, every=every)
        numbers = Counter((e.destination, str(e.row["error_class"]), e.state) for e in found)
        parked = {name: len(broker.redrives.parked(name)) for name in broker.access.members(broker.keys.destinations)}
        rows = [{"destination": d, "class": c, "state": s, "letters": n} for (d, c, s), n in sorted(numbers.items())]
        if format is Format.json:
            print_json({"letters": rows, "parked_keys": {name: n for name, n in parked.items() if n}})
        else:
            print_table(["destination", "class", "state", "letters"], [tuple(row.values()) for row in rows])
            note(_counted(found, every, pipeline))
            for name, keys in parked.items():
                if keys:
                    note(f"{name}: {keys:,} key(s) parked")
        _say_differences(book)


@app.command()
@filtered
def export(
    pipeline: Pipeline,
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    *,
    selection: Selection,
    every: Every = False,
    format: Annotated[FileFormat, typer.Option(help="OpenCDC records as JSON Lines, or the store's Parquet.")] = (
        FileFormat.jsonl
    ),
) -> None:
    """Write the dead letters of PIPELINE to a file; nothing else changes."""
    from conduit_tasks.dead_letters.book import whole
    from conduit_tasks.dead_letters.export import write_jsonl, write_parquet

    with _opened(pipeline, selection) as (stores, _, book):
        found = book.select(selection, every=every)
        if format is FileFormat.jsonl:
            write_jsonl(output, whole(stores[0], found))
        else:
            write_parquet(output, stores[0], found)
        note(f"{len(found):,} dead letter(s) written to {output}")
        _say_differences(book)


@app.command()
@filtered
def redrive(
    pipeline: Pipeline,
    *,
    selection: Selection,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would go, and change nothing.")] = False,
    by: Annotated[str | None, typer.Option(help="Who does it; default: you, at this machine.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a live delivery to hand over.")] = 120.0,
) -> None:
    """Send dead letters again, only to the destination at which they failed, and then the records parked behind them.

    Exit code 0 if no record is a dead letter again, 3 if one is.
    """
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.halting import ended_by_force
    from conduit_tasks.resend import redrive as sending

    with ended_by_force(end_process), opened(pipeline, f"redrive of {by or _operator()}") as context:
        shares, said = sending.shares(context, selection)
        for sentence in said:
            note(sentence)
        if dry_run:
            rows = [row for share in shares for row in share.rows]
            headers = ["destination", "micro-batch", "record", "attempts", "class", "id"]
            print_table(
                headers,
                [
                    (r["destination"], r["micro_batch"], _place(r), r["attempts"], r["error_class"], r["id"])
                    for r in rows
                ],
            )
            for share in shares:
                behind = f", and {share.waiting:,} parked record(s) behind them" if share.waiting else ""
                note(f"{share.destination}: {share.letters.num_rows:,} dead letter(s) would go{behind}")
            return
        outcomes = sending.redrive(
            context, selection, by or _operator(), wait=wait, progress=lambda o: note(_outcome(o))
        )
    headers = ["destination", "redriven", "dead again", "held", "gone", "released", "still parked"]
    print_table(
        headers, [(o.destination, o.redriven, o.again, o.held, o.gone, o.released, o.waiting) for o in outcomes]
    )
    if any(o.again for o in outcomes):
        raise typer.Exit(3)


@app.command()
@filtered
def purge(
    pipeline: Pipeline,
    *,
    selection: Selection,
    every: Every = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it, only print what would go.")] = False,
) -> None:
    """Give dead letters up: remove them for good, except letters that are being redriven."""
    from conduit_tasks.dead_letters.indexed import index_name

    with _opened(pipeline, selection) as ((store, marks), broker, book):
        found = book.select(selection, every=every)
        if not yes:
            note(f"{_counted(found, every, pipeline)} would be removed for good; say --yes to do it")
            return
        removed = 0
        for name in sorted({e.destination for e in found}):
            keys = {e.key for e in found if e.destination == name}
            # First the index, then the files: a crash in between leaves letters that are no longer open.
            keys -= set(broker.redrives.purge(index_name(name), sorted(keys)))
            store.remove(name, keys)
            marks.remove(name, keys)
            removed += len(keys)
        note(f"{removed:,} removed")
        if removed < len(found):
            note(f"{len(found) - removed:,} stay: they are being redriven")


@contextmanager
def _opened(pipeline: str, selection: Selection) -> Iterator[tuple[tuple[DeadLetterStore, Marks], Any, Book]]:
    """Opens the stores, the broker, and the book made from both; the pipeline's file need not exist any more."""
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.dead_letters.book import read_book
    from conduit_tasks.dead_letters.marks import Marks
    from conduit_tasks.dead_letters.store import DeadLetterStore
    from conduit_tasks.redis_client.connection import connect

    root = settings().path(settings().dead_letters)
    stores = (DeadLetterStore(root, pipeline), Marks(root, pipeline))
    broker = Broker(pipeline, connect(settings()))
    try:
        yield stores, broker, read_book(*stores, broker, selection.destination)
    finally:
        broker.close()


def _whole(entry: LetterEntry) -> dict[str, Any]:
    import orjson

    record = orjson.loads(entry.row["record"])
    row = {name: value for name, value in entry.row.items() if name != "file"}
    mark = entry.mark
    redriven = {"outcome": mark.outcome, "epoch": mark.redrive, "at": mark.at, "by": mark.by} if mark else None
    return {**row, "record": record, "position": record["position"], "state": entry.state, "redrive": redriven}


def _line(entry: LetterEntry) -> tuple[Any, ...]:
    row = entry.row
    error = row["error"] if len(row["error"]) <= 80 else row["error"][:79] + "…"
    at = row["at"].isoformat(timespec="seconds")
    return (
        *(entry.destination, row["micro_batch"], _place(row), at, row["attempts"], row["error_class"], error),
        *(entry.state, row["id"]),
    )


def _place(row: dict[str, Any]) -> str:
    return f"{row['seq']}.{row['ord']}" if row["ord"] else str(row["seq"])


def _counted(found: list[LetterEntry], every: bool, pipeline: str) -> str:
    return f"{len(found):,} {'letter' if every else 'dead letter'}(s) in {pipeline}"


def _outcome(o: Any) -> str:
    return f"{o.destination}: {o.redriven:,} redriven, {o.again:,} dead again, {o.released:,} released"


def _say_differences(book: Book) -> None:
    for sentence in book.differences():
        note(sentence)


def _operator() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()
