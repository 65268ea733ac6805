"""`conduit ledger PIPELINE`: outcomes of records by destination, time and attempt; with `--record` the history of one
record, and its state as a whole (SEMANTICS X5)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.errors import ConfigError

SHOWN = ("ended", "destination", "micro_batch", "first", "last", "outcome", "status", "seconds", "error_class", "run")


def ledger(  # noqa: PLR0917 - its options
    pipeline: Pipeline,
    destination: Annotated[str | None, typer.Option(help="Only of this destination.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only what ended then or later: 2h, 7d, or 2026-01-31T09:00.")
    ] = None,
    sql: Annotated[str | None, typer.Option(help='A query, such as "SELECT * FROM ledger WHERE …".')] = None,
    record: Annotated[str | None, typer.Option(help="Delivery history of the record with this id.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Only of this micro-batch.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="With --micro-batch: history of this index.")] = None,
    seq: Annotated[int | None, typer.Option(min=0, help="With --micro-batch: history of this number in it.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows, the newest, where no --sql is given.")] = 100,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.text,
) -> None:
    """Print the delivery ledger: a row per range of records, destination and attempt.

    With --record, or --micro-batch and --index or --seq: every attempt at that record, at each destination.
    """
    from conduit_tasks.dead_letters.select import moment
    from conduit_tasks.ledger.entry import SCHEMA
    from conduit_tasks.ledger.history import attempts_at
    from conduit_tasks.ledger.messages import Overall
    from conduit_tasks.ledger.messages import rows_of as messages
    from conduit_tasks.ledger.query import rows_of, select
    from conduit_tasks.ledger.store import Ledger
    from conduit_tasks.micro_batch.context import open_spool
    from conduit_tasks.pipeline.load import get_pipeline
    from conduit_tasks.settings import settings

    if (index is not None or seq is not None) and micro_batch is None:
        raise ConfigError("--index and --seq are numbers in a micro-batch: give --micro-batch too")
    found = get_pipeline(pipeline)
    if destination and destination not in {d.id for d in found.destinations}:
        note(f"{pipeline} has no destination {destination} now; showing what the ledger has of it")
    spool = open_spool(found)
    book = Ledger(spool, found.id)
    after = moment(since, "--since").timestamp() if since else None
    if record or index is not None or seq is not None:
        places = _places(spool, found.id, record, micro_batch, index, seq)
        overall = Overall(found, spool, settings().path(settings().dead_letters))
        for place in places:
            said = [
                f"{name} {value}"
                for name, value in asdict(place).items()
                if value not in ("", None) and name not in ("id", "ord")
            ]
            note(f"{', '.join(said)}: {overall.of(place.micro_batch).state(place.seq)} as a whole")
        table = attempts_at(book, places, destination, after)
    else:
        table = book.read(destination, after, micro_batch)
    if sql:
        root, wanted = settings().path(settings().dead_letters), set(table["micro_batch"].to_pylist())
        names, rows = select(table, sql, lambda: messages(found, spool, root, wanted))
    else:
        names, rows = list(SCHEMA.names), rows_of(table)
        if len(rows) > limit:
            note(f"{len(rows):,} rows, the newest {limit:,} shown")
            rows = rows[-limit:]
    if format is Format.json:
        print_json([dict(zip(names, row)) for row in rows])
    elif sql:
        print_table(names, rows)
    else:
        print_table(SHOWN, [[_short(dict(zip(names, row)), name) for name in SHOWN] for row in rows])


def _places(  # noqa: PLR0917 - the three ways of naming a record
    spool: Any, pipeline: str, record: str | None, m: int | None, index: int | None, seq: int | None
) -> list[Any]:
    from conduit_tasks.ledger.find import Place, by_index
    from conduit_tasks.ledger.history import places_of

    if record:
        return places_of(spool, pipeline, record)
    assert m is not None
    if seq is not None:
        return [Place(m, seq)]
    assert index is not None
    places = by_index(spool, pipeline, m, index)
    if not places:
        raise ConfigError(f"no record of micro-batch {m} has index {index}")
    return places


def _short(row: dict[str, Any], name: str) -> Any:
    value = row[name]
    if name == "ended":
        return str(value)[:19]
    return round(value, 3) if name == "seconds" and value is not None else value
