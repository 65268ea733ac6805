"""`conduit records history`: records found by id, key or a field, each with its way as a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_tasks.cli.arguments import Pipeline
from conduit_tasks.cli.output import Format, note, print_json, print_table
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.ledger.find import Place
    from conduit_tasks.ledger.waterfall import Step, Waterfall

WIDTH = 32
"""Characters of a bar."""


def history(  # noqa: PLR0917 - its options
    pipeline: Pipeline,
    record: Annotated[str | None, typer.Option(help="The record's id.")] = None,
    key: Annotated[str | None, typer.Option(help="Or its key.")] = None,
    field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Or a field under `index` of the file, with --value.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="With --field: its value; numbers as JSON writes them.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="With --record: only in this one.")] = None,
    last: Annotated[int, typer.Option(min=1, max=100, help="Waterfalls of so many at most, the newest.")] = 5,
    format: Annotated[Format, typer.Option(help="text, or json for programs.")] = Format.text,
) -> None:
    """Finds records of PIPELINE in its spool, the newest first, and shows the way of each: read, staged, sealed, each
    attempt at each destination with its answer and duration, acked.

    Masked fields cannot be looked for. Exit code 2: an option is wrong, or nothing has this id.
    """
    from conduit_tasks.ledger.find import Search
    from conduit_tasks.ledger.history import places_of
    from conduit_tasks.ledger.messages import Overall
    from conduit_tasks.ledger.values import ByValue
    from conduit_tasks.ledger.waterfall import Waterfalls
    from conduit_tasks.micro_batch.context import open_spool
    from conduit_tasks.pipeline.load import get_pipeline
    from conduit_tasks.record.searchable import KEY
    from conduit_tasks.settings import settings

    if [record, key, field].count(None) != 2 or (field is None) != (value is None):
        raise ConfigError("give exactly one of --record, --key, and --field with --value")
    if micro_batch is not None and record is None:
        raise ConfigError("--micro-batch goes with --record")
    found = get_pipeline(pipeline)
    spool = open_spool(found)
    more = False
    if record is not None:
        places = places_of(spool, found.id, record, micro_batch)
    else:
        search = Search(spool, found.id, ByValue(found, field or KEY, value or key or ""))
        places = search.look()
        more = search.more
        whole, rows = search.searched
        if whole:
            gone = f"{whole:,} micro-batch(es) with {rows:,} records"
            note(f"{gone} have no index of it (small ones never have), and were gone through")
    overall = Overall(found, spool, settings().path(settings().dead_letters))
    ways = Waterfalls(found, spool)
    shown = [(ways.of(place), overall.of(place.micro_batch).state(place.seq)) for place in places[:last]]
    if format is Format.json:
        print_json(
            {
                "places": [asdict(place) for place in places],
                "more": more,
                "waterfalls": [{**way.to_dict(), "state": state} for way, state in shown],
            }
        )
        return
    for way, state in shown:
        _print(way, state)
    if not places:
        note(f"no record that the spool of {found.id} holds has it, or it is masked")
    if len(places) > last or more:
        note(f"{len(places):,}{' or more' if more else ''} found, the newest {len(shown)} shown; --last shows more")


def _print(way: Waterfall, state: str) -> None:
    from conduit_tasks.ledger.waterfall import bar, span_of

    print(f"{_named(way.place)}: {state} as a whole")
    span = span_of(way.steps)
    print_table(
        ("step", "node", "began", "seconds", "", "answer"),
        [
            (
                step.step,
                step.node,
                _clock(step.began if step.began is not None else step.ended),
                "" if step.began is None or step.ended is None else f"{max(0.0, step.ended - step.began):.3f}",
                bar(step.began, step.ended, span, WIDTH),
                _answer(step),
            )
            for step in way.steps
        ],
    )
    print_table(
        ("destination", "attempts", "answer", "seconds", "in attempts"),
        [(t.destination, t.attempts, t.outcome or "", _number(t.seconds), _number(t.attempting)) for t in way.targets],
    )
    for text in way.notes:
        note(text)


def _named(place: Place) -> str:
    said = [f"micro-batch {place.micro_batch}", f"record {place.seq}"]
    said += [f"{name} {value}" for name, value in _known(place) if value not in ("", None)]
    return ", ".join(said)


def _known(place: Place) -> Sequence[tuple[str, Any]]:
    names = ("id", "source", "partition", "index")
    return [(name, getattr(place, name)) for name in names] + ([("ord", place.ord)] if place.ord else [])


def _clock(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _answer(step: Step) -> str:
    said = [step.outcome and (step.outcome if step.exact else f"{step.outcome} *")]
    said += [step.status if step.status != "done" else None, step.error_class, step.error, step.run]
    said += [f"{step.retried:,} repeated send(s) in the attempt" if step.retried else None]
    said += [f"epoch {step.epoch}" if step.epoch else None]
    return ", ".join(each for each in said if each)
