"""`conduit dead-letters`: what could not be delivered, from the project's own store (SEMANTICS C14)."""

from __future__ import annotations

from typing import Annotated

import typer

from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.settings import settings

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="What could not be delivered."
)


@app.callback()
def _group() -> None:
    """Keeps `list` a command of its own while it is the only one."""


@app.command("list")
def list_(
    pipeline: Annotated[str, typer.Argument(help="Id of the pipeline.")],
    destination: Annotated[
        str | None, typer.Option(help="Only of this destination; `_pipeline`: what failed before the fan-out.")
    ] = None,
    error_class: Annotated[str | None, typer.Option(help="Only of this class, such as `http 400`.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, oldest first.")] = 100,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.text,
) -> None:
    """List the dead letters of PIPELINE, each once, with record, position, error, node and attempts.

    A `dead-letter-queue` with a plugin of its own is not read: look where it writes.
    """
    from conduit_tasks.delivery.dead_letter_store import DeadLetterStore

    store = DeadLetterStore(settings().path(settings().dead_letters), pipeline)
    rows = store.list(destination, error_class)
    shown = rows[:limit]
    if format is Format.json:
        print_json([{**row, "position": row["record"]["position"]} for row in shown])
        return
    print_table(
        ["destination", "micro-batch", "record", "at", "attempts", "class", "error", "id"],
        [
            (
                row["destination"],
                row["micro_batch"],
                f"{row['seq']}.{row['ord']}" if row["ord"] else str(row["seq"]),
                row["at"].isoformat(timespec="seconds"),
                row["attempts"],
                row["error_class"],
                row["error"] if len(row["error"]) <= 80 else row["error"][:79] + "…",
                row["id"],
            )
            for row in shown
        ],
    )
    note(f"{len(rows):,} dead letter(s) in {pipeline}" + (f", {limit:,} shown" if len(rows) > limit else ""))
