"""A record's delivery history: every attempt at it, at each destination (SEMANTICS X5)."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

from conduit_tasks.errors import ConfigError
from conduit_tasks.ledger.entry import SCHEMA
from conduit_tasks.ledger.find import Place, Search
from conduit_tasks.ledger.ids import ById
from conduit_tasks.ledger.query import covering
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.spool.spool import Spool


class UnknownRecord(ConfigError):
    """The error that no record still kept has this id; ask for one that the spool or the dead letters still hold."""


AT_ONCE = 500_000
"""Limit of records that one call of the API searches: a second or two of one core."""
REMEMBERED = 16
"""Number of searches that are kept, to be continued by the next call."""

_lock = threading.Lock()
_searches: OrderedDict[tuple[str, str, str], Search] = OrderedDict()


def places_of(spool: Spool, pipeline: str, record: str) -> list[Place]:
    """Returns the places of the record with this id, newest first. Raises UnknownRecord if no record kept has it."""
    return Search(spool, pipeline, ById(pipeline, record)).look() or _dead(pipeline, record)


def places_so_far(spool: Spool, pipeline: str, record: str) -> tuple[list[Place], int]:
    """Returns the places found so far, at a bounded cost, and the number of micro-batches left to search.

    One call searches `AT_ONCE` records, and the next one with this id continues from there. One search runs at a time.
    """
    key = (spool.uri(""), pipeline, record)
    with _lock:
        search = _searches.setdefault(key, Search(spool, pipeline, ById(pipeline, record)))
        _searches.move_to_end(key)
        while len(_searches) > REMEMBERED:
            _searches.popitem(last=False)
        places = search.look(AT_ONCE)
    return places or ([] if search.left else _dead(pipeline, record)), search.left


def attempts_at(
    ledger: Ledger, places: list[Place], destination: str | None = None, since: float | None = None
) -> pa.Table:
    """Returns the ledger's rows whose ranges hold one of these places."""
    tables = [covering(ledger.read(destination, since, place.micro_batch), place.seq) for place in places]
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


def _dead(pipeline: str, record: str) -> list[Place]:
    """Returns the places of a record among the dead letters: one that ended before the fan-out is in no spool file.
    Raises UnknownRecord."""
    from conduit_tasks.dead_letters.store import DeadLetterStore
    from conduit_tasks.settings import settings

    rows = DeadLetterStore(settings().path(settings().dead_letters), pipeline).list()
    found = [
        Place(r["micro_batch"], r["seq"], r["connector"], r["partition"], r["index"]) for r in rows if r["id"] == record
    ]
    if not found:
        raise UnknownRecord(
            f"no record {record} in what the spool of {pipeline} still holds (spool.retention), nor among its dead "
            "letters"
        )
    return list(dict.fromkeys(found))
