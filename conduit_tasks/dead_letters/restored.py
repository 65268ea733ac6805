"""Restores dead letters and parked keys that Redis lost, from their own store (SEMANTICS X7).

A letter is open again if its record is confirmed and no mark says what became of it; a record that is not confirmed is
delivered again anyway, and fails again or not. A key is parked if it has an open letter and the destination parks keys,
or if it has confirmed copies that wait. For records that Redis itself still has as confirmed, Redis is complete: only
letters and keys that it still has are open or parked, and they stay as they are. What is found is added to what is
there, so a part of it may be written twice. At worst, a record is sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.dead_letters import index_entry
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import Place, positions
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.parking import stored_key_hash
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, UNSENT, DeadLetterStore, row_key
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.topology import Pipeline

Fields = dict[str, str]
_KEYED = ("exact.key", "exact.shape", "node", "error_class", "attempts")


def lost_exceptions(
    pipeline: Pipeline, broker: Broker, deliveries: Mapping[str, Mapping[str, str]]
) -> dict[str, Fields]:
    """Returns the keys and fields that Redis has forgotten, to be added. `deliveries`: destination → its state (cursor,
    ranges) as it will be. Raises ConduitError if the store cannot be read."""
    root, out, keys = settings().path(settings().dead_letters), dict[str, Fields](), broker.keys
    store, parked, marks = (
        DeadLetterStore(root, pipeline.id),
        DeadLetterStore(root, pipeline.id, parked=True),
        Marks(root, pipeline.id),
    )
    for name in [BEFORE_FAN_OUT, *deliveries]:
        own = "" if name == BEFORE_FAN_OUT else name
        done, known = marks.read(name), _known(broker, own)
        rows = [row for row in store.rows(name, _KEYED) if row_key(row) not in done]
        if own:
            rows = [row for row in rows if row["epoch"] or _unsent(row) or _confirmed(row, deliveries[own])]
        rows = [row for row in rows if row["epoch"] or _unsent(row) or not _confirmed(row, known, divided=False)]
        if rows:
            out[keys.dead(own)] = dict(
                index_entry(row_key(row), row["at"].timestamp(), row["attempts"], row["error_class"]) for row in rows
            )
        if own:
            waiting = [row for row in parked.rows(name, _KEYED) if _confirmed(row, deliveries[own])]
            opens = pipeline.destination(own).delivery.park_keys
            found = _parked(
                rows if opens else [], [row for row in waiting if not _confirmed(row, known, divided=False)]
            )
            there = broker.access.scanned(keys.parked(own)) if found else {}
            if found := {hashed: at for hashed, at in found.items() if hashed not in there}:
                out[keys.parked(own)] = positions(found)
    return out


def _parked(letters: list[dict[str, Any]], waiting: list[dict[str, Any]]) -> dict[str, Place]:
    """Returns hash of a key → position up to which it is settled: its first letter, or just before its first copy."""
    found: dict[str, Place] = {}
    for rows, before in ((letters, 0), (waiting, 1)):
        for row in rows:
            if (hashed := stored_key_hash(row["exact"]["key"], row["exact"]["shape"])) is not None:
                at = (row["micro_batch"], row["seq"], row["ord"] - before)
                found[hashed] = min(at, found.get(hashed, at))
    return found


def _confirmed(row: dict[str, Any], state: Mapping[str, str], *, divided: bool = True) -> bool:
    """Returns whether a stored letter's record is confirmed. `divided`: the answer for one of a micro-batch that is
    divided and not passed by the cursor: its numbers in the shards are not known here."""
    cursor, m = int(state["cursor"]), row["micro_batch"]
    name = "divided" if m == cursor + 1 else f"divided:{m}"
    if m > cursor and state.get(name, "").startswith(f"{m}:"):
        return divided
    return m <= cursor or (m == cursor + 1 and row["seq"] in RangeSet.parse(state.get("ranges")))


def _unsent(row: dict[str, Any]) -> bool:
    """Returns whether a redrive brought the letter here: then no live delivery sends it."""
    return str(row["node"]).endswith(f"/{UNSENT}")


def _known(broker: Broker, destination: str) -> Mapping[str, str]:
    """Returns how far a destination is according to Redis itself; before the fan-out, the last sealed micro-batch,
    because sealing tells Redis of the letters."""
    if not destination:
        return {"cursor": str(broker.access.numbers("sealed")[0])}
    return {"cursor": "0", **broker.access.hash(broker.keys.destination(destination))}
