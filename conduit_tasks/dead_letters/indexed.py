"""Letters of a look (`columns`) that the broker's index has: those that are open, as far as is known, and among them
those that a selection takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters.select import is_key
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT
from conduit_tasks.record import jsons

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.dead_letters.select import Selection


def indexed_letters(letters: pa.Table, broker: Broker, destination: str | None = None) -> pa.Table:
    """Returns those that are open, as `Book` says it. `destination`: only its letters."""
    taken = pa.array(np.zeros(letters.num_rows, bool))
    for name in pc.unique(letters["destination"]).to_pylist():
        if destination in (None, name):
            there = pa.array(broker.dead_letters.fields(index_name(name)), pa.string())
            mine = pc.equal(letters["destination"], name)
            taken = pc.or_(taken, pc.and_(mine, pc.is_in(letters["field"], value_set=there)))
    return letters.filter(taken)


def index_name(destination: str) -> str:
    """Returns the name that a destination of the store has in the broker's index."""
    return "" if destination == BEFORE_FAN_OUT else destination


def taken(letters: pa.Table, selection: Selection) -> pa.Table:
    """Returns the letters of a look that a selection takes."""
    if selection.destination is not None:
        letters = letters.filter(pc.equal(letters["destination"], selection.destination))
    if selection.since is not None:
        letters = letters.filter(pc.greater_equal(letters["at"], _moment(selection.since)))
    if selection.until is not None:
        letters = letters.filter(pc.less(letters["at"], _moment(selection.until)))
    of = {
        "error_class": selection.classes,
        "micro_batch": selection.micro_batches,
        "id": selection.ids,
        "issue": selection.issues,
    }
    for name, wanted in of.items():
        if wanted:
            column = letters[name]
            letters = letters.filter(pc.is_in(column, value_set=pa.array(wanted, column.type)))
    return _with_keys(letters, selection.keys) if selection.keys else letters


def _with_keys(letters: pa.Table, wanted: tuple[str, ...]) -> pa.Table:
    raw = pc.and_(pc.invert(letters["structured"]), pc.is_in(letters["key"], value_set=pa.array(wanted, pa.string())))
    texts = pc.unique(letters["key"].filter(letters["structured"])).to_pylist()
    same = [text for text in texts if text is not None and is_key(jsons.exact(text), wanted)]
    as_json = pc.and_(letters["structured"], pc.is_in(letters["key"], value_set=pa.array(same, pa.string())))
    return letters.filter(pc.or_(raw, as_json))


def _moment(at: Any) -> pa.Scalar:
    return pa.scalar(at, pa.timestamp("us", "UTC"))
