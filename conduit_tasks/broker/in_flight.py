"""Records and bytes of what is sealed that one destination still has to get, only what its trigger matched, and the
micro-batches that are gone before it got them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker


@dataclass(frozen=True)
class InFlight:
    """Part of the sealed micro-batches that one destination still has to get. `records`: those its trigger matched, at
    most; `bytes`: their share of the micro-batches' size, so approximate."""

    records: int = 0
    bytes: int = 0
    micro_batches: int = 0
    lost: int = 0
    """Number of micro-batches past the cursor that are collected already: nothing can deliver them any more."""

    def __str__(self) -> str:
        return f"{self.records:,} records, {self.bytes:,} bytes" if self.micro_batches else "-"


def in_flight(broker: Broker, destination: str) -> InFlight:
    """Returns what a destination has not confirmed of the sealed micro-batches."""
    state = broker.access.hash(broker.keys.destination(destination))
    if "cursor" not in state:
        return InFlight()
    import orjson

    from conduit_tasks.broker.deliveries import delivery_state

    sealed, collected = broker.access.numbers("sealed", "collected")
    delivery = delivery_state(state)
    cursor = delivery.cursor
    pending = range(max(cursor, collected) + 1, sealed + 1)
    found = broker.access.read(*(("HMGET", broker.keys.micro_batch(m), "matched", "total", "bytes") for m in pending))
    records = whole = batches = 0
    for m, (text, total, size) in zip(pending, found):
        matched = orjson.loads(text).get(destination, 0) if text else 0
        # Of a divided micro-batch only records that the trigger matched are counted; otherwise all are.
        divided = any(division.micro_batch == m for division in delivery.divisions)
        left = min(matched, (matched if divided else int(total)) - delivery.confirmed_of(m))
        if left:
            records, whole, batches = records + left, whole + int(size) * left // int(total), batches + 1
    return InFlight(records, whole, batches, max(0, collected - cursor))
