"""How many dead letters would be sent again: the counts of `select.shares`, by columns, without the records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters.indexed import indexed_letters, taken
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, KEY, Key
from conduit_tasks.resend.before_fan_out import startable
from conduit_tasks.resend.waiting import Waiting

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.select import Selection
    from conduit_tasks.micro_batch.context import Context


@dataclass(frozen=True)
class Share:
    """Number of dead letters that one destination would be sent, and of the parked records behind them."""

    destination: str
    letters: int
    parked: int = 0


def counted(context: Context, selection: Selection, letters: pa.Table) -> tuple[list[Share], list[str]]:
    """Returns the counts of what `shares` returns, and its sentences. `letters`: all of a look at the pipeline."""
    out, said = list[Share](), list[str]()
    pipeline, before = context.pipeline, selection.destination == BEFORE_FAN_OUT
    opened = indexed_letters(letters, context.broker, None if before else selection.destination)
    chosen = taken(opened, selection)
    counts = {each["values"]: each["counts"] for each in pc.value_counts(chosen["destination"]).to_pylist()}
    for name in sorted(counts.keys() - {BEFORE_FAN_OUT, *(d.id for d in pipeline.destinations)}):
        said.append(
            f"{counts[name]:,} dead letter(s) belong to {name}, which is no destination of {pipeline.id} any more"
        )
    if counts.get(BEFORE_FAN_OUT):
        found = _with_records(opened, chosen, BEFORE_FAN_OUT, places=True)
        rows = found.select(["micro_batch", "seq", "node", "error_class"]).to_pylist()
        rows, why = startable(pipeline, rows)
        said += why
        if rows:
            out.append(Share(BEFORE_FAN_OUT, len(rows)))
    # A record may have failed in several epochs: it is sent once, and settles all its letters.
    for destination in () if before else pipeline.destinations:
        if selection.destination in (None, destination.id):
            mine = _with_records(opened, chosen, destination.id)
            waiting = len(Waiting(context, destination).released(partial(_keys, mine)))
            if mine.num_rows or waiting:
                out.append(Share(destination.id, mine.num_rows, waiting))
    return out, said


def _with_records(opened: pa.Table, chosen: pa.Table, destination: str, *, places: bool = False) -> pa.Table:
    """Returns the open letters of a destination that are of the chosen letters' records (`places`: of their places)."""
    if not chosen.num_rows:
        return chosen
    opened, chosen = (of.filter(pc.equal(of["destination"], destination)) for of in (opened, chosen))
    return opened.filter(pc.is_in(_records(opened, places), value_set=_records(chosen, places)))


def _records(letters: pa.Table, places: bool) -> pa.ChunkedArray:
    """Returns what `record_of` (`place_of`) tells records apart by, as text."""
    if places:
        parts = [letters["micro_batch"], letters["seq"]]
    else:
        epoch = pc.if_else(pc.equal(letters["micro_batch"], 0), letters["epoch"], 0)
        parts = [letters["micro_batch"], epoch, letters["seq"], letters["ord"]]
    return pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), "-")


def _keys(letters: pa.Table) -> set[Key]:
    return set(zip(*(letters[name].to_pylist() for name in KEY)))
