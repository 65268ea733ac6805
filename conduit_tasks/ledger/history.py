"""A record's places, in spool and dead letters, by searches that go on from call to call, and every attempt at it, at
each destination (SEMANTICS X5)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from conduit_tasks.errors import ConfigError
from conduit_tasks.ledger.entry import SCHEMA
from conduit_tasks.ledger.find import Finder, Place, Search
from conduit_tasks.ledger.ids import ById
from conduit_tasks.ledger.query import covering
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.ledger.values import ByValue
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Pipeline


class UnknownRecord(ConfigError):
    """The error that no record still kept has this id; ask for one that the spool or the dead letters still hold."""


AT_ONCE = 500_000
"""Limit of records that one call of the API searches: a second or two of one core."""
REMEMBERED = 16
"""Number of searches that are kept, to be continued by the next call."""

_lock = threading.Lock()
_searches: OrderedDict[tuple[str, ...], Search] = OrderedDict()


def places_of(spool: Spool, pipeline: str, record: str, micro_batch: int | None = None) -> list[Place]:
    """Returns the places of the record with this id, newest first; with `micro_batch` those in that one. Raises
    UnknownRecord if no record kept has it."""
    return Search(spool, pipeline, ById(pipeline, record), micro_batch).look() or _dead(pipeline, record)


def places_so_far(spool: Spool, pipeline: str, record: str, micro_batch: int | None = None) -> tuple[list[Place], int]:
    """Returns the places found so far, at a bounded cost, and the number of micro-batches left to search.

    One call searches `AT_ONCE` records, and the next one with this id continues from there. One search runs at a time.
    """
    with _continued(spool, pipeline, ById(pipeline, record), ("id", record, str(micro_batch)), micro_batch) as search:
        places = search.look(AT_ONCE)
    return places or ([] if search.left else _dead(pipeline, record)), search.left


def found_so_far(spool: Spool, pipeline: Pipeline, field: str, value: str) -> tuple[list[Place], Search]:
    """Returns the places of records whose field has this value, as `places_so_far` does, and the search. Raises
    ConfigError for a field by which nothing may be found."""
    finder = ByValue(pipeline, field, value)
    key = (field, value, *pipeline.mask)
    with _continued(spool, pipeline.id, finder, key, None) as search:
        return search.look(AT_ONCE), search


@contextmanager
def _continued(
    spool: Spool, pipeline: str, finder: Finder, what: tuple[str, ...], only: int | None
) -> Iterator[Search]:
    key = (spool.uri(""), pipeline, *what)
    with _lock:
        search = _searches.setdefault(key, Search(spool, pipeline, finder, only))
        _searches.move_to_end(key)
        while len(_searches) > REMEMBERED:
            _searches.popitem(last=False)
        yield search


def attempts_at(
    ledger: Ledger, places: list[Place], destination: str | None = None, since: float | None = None
) -> pa.Table:
    """Returns the ledger's rows whose ranges hold one of these places."""
    tables = [covering(ledger.read(destination, since, place.micro_batch), place.seq) for place in places]
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


def _dead(pipeline: str, record: str) -> list[Place]:
    """Returns the places of a record among the dead letters: one that ended before the fan-out is in no spool file.
    Raises UnknownRecord."""
    import pyarrow.compute as pc

    from conduit_tasks.dead_letters.book import rows_of
    from conduit_tasks.dead_letters.columns import look
    from conduit_tasks.dead_letters.store import DeadLetterStore
    from conduit_tasks.settings import settings

    root = settings().path(settings().dead_letters)
    found = look(root, pipeline)
    mine = rows_of(found.letters.filter(pc.equal(found.letters["id"], record)), found.paths)
    rows = DeadLetterStore(root, pipeline).whole(mine, ["connector", "partition", "index"])
    places = [Place(r["micro_batch"], r["seq"], r["connector"], r["partition"], r["index"]) for r in rows]
    if not places:
        raise UnknownRecord(
            f"no record {record} in what the spool of {pipeline} still holds (spool.retention), nor among its dead "
            "letters. Of a micro-batch that is collected the ledger alone knows, by numbers: "
            f"`conduit ledger {pipeline} --micro-batch M --seq N`"
        )
    return list(dict.fromkeys(places))
