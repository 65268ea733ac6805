"""The sql destination keeps the index of what it wrote in the rows' own transaction (SEMANTICS B8)."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.connectors.sql.connector import SqlDestination
from conduit_tasks.errors import Fenced, Refused
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch
from tests.connectors.test_sql import ORIGIN, event, execute, url  # noqa: F401 - a fixture

MODES = pytest.mark.parametrize("mode", ["append", "upsert"])


def numbered(events: Sequence[Record], first: int, *, epoch: int = 7, destination: str = "d") -> Rows:
    """Rows numbered from `first` on."""
    batch = spool_batch([0] * len(events), list(range(len(events))), events)
    numbers = RowNumbers("p", destination, epoch, np.arange(first, first + len(events)))
    return Rows(batch, [ORIGIN], 1, 0, len(events) - 1, numbers)


def opened(url: str, **settings: str) -> SqlDestination:  # noqa: F811
    destination = SqlDestination(
        {"url": url, "table": "events", "columns": "delay:int=.Payload.After.delay", **settings}
    )
    destination.open(None)
    return destination


def delays(url: str) -> list[int]:  # noqa: F811
    return [row[0] for row in execute(url, "SELECT delay FROM events")]


@pytest.mark.proves("B8", "O5")
@MODES
@pytest.mark.parametrize("seed", range(3))
def test_attempts_that_die_at_any_place_and_begin_again_anywhere_before_leave_each_row_once(
    url: str,  # noqa: F811
    mode: str,
    seed: int,
) -> None:
    chance = random.Random(seed)
    events = [event(n) for n in range(120)]
    confirmed = 0
    while confirmed < len(events):
        # Each attempt begins at what was confirmed, cuts chunks of its own, and dies after some writes.
        destination, at = opened(url, mode=mode), confirmed
        for _ in range(chance.randint(1, 4)):
            chunk = events[at : at + chance.randint(1, 25)]
            if chunk:
                destination.write(numbered(chunk, at + 1))
            at += len(chunk)
        destination.close()
        confirmed = chance.randint(confirmed, at)
    assert delays(url) == list(range(120))


@pytest.mark.proves("I4")
@MODES
def test_a_writer_that_lost_its_lease_leaves_neither_rows_nor_index(url: str, mode: str) -> None:  # noqa: F811
    def lost() -> None:
        raise Fenced("the lease was lost")

    destination = opened(url, mode=mode)
    destination.still_ours, ours = lost, destination.still_ours
    with pytest.raises(Fenced):
        destination.write(numbered([event(0)], 1))
    assert delays(url) == []
    destination.still_ours = ours
    destination.write(numbered([event(0)], 1))
    destination.close()
    assert delays(url) == [0]


@pytest.mark.proves("B8")
@MODES
def test_a_refused_chunk_leaves_neither_rows_nor_index(url: str, mode: str) -> None:  # noqa: F811
    execute(url, "CREATE TABLE events (id VARCHAR(32) PRIMARY KEY, delay INTEGER CHECK (delay <> 3))")
    destination = opened(url, mode=mode)
    events = [event(n) for n in range(6)]
    with pytest.raises(Refused):
        destination.write(numbered(events, 1))
    for n, one in enumerate(events):
        if n != 3:
            destination.write(numbered([one], n + 1))
    destination.close()
    assert delays(url) == [0, 1, 2, 4, 5]


@pytest.mark.proves("O5")
def test_epochs_and_destinations_have_an_index_each(url: str) -> None:  # noqa: F811
    destination = opened(url, mode="append")
    for epoch, name in ((7, "d"), (7, "e"), (8, "d"), (7, "d")):
        destination.write(numbered([event(1)], 1, epoch=epoch, destination=name))
    destination.close()
    assert delays(url) == [1, 1, 1]
    assert len(execute(url, "SELECT * FROM conduit_index")) == 3


@pytest.mark.proves("B8")
def test_rows_that_were_changed_in_the_table_are_not_put_back_by_a_repetition(url: str) -> None:  # noqa: F811
    destination = opened(url)
    destination.write(numbered([event(1), event(2)], 1))
    execute(url, "UPDATE events SET delay = 77 WHERE delay = 1")
    destination.write(numbered([event(1), event(2), event(3)], 1))
    destination.close()
    assert sorted(delays(url)) == [2, 3, 77]


@pytest.mark.proves("B8", "I4")
def test_an_attempt_that_was_given_up_and_commits_late_leaves_each_row_once(url: str) -> None:  # noqa: F811
    # Given an attempt that has written, and commits only when another one is waiting for it
    zombie, successor = opened(url, mode="append"), opened(url, mode="append")
    zombie.write(numbered([event(0)], 1))
    waiting = threading.Event()
    late = threading.Thread(target=lambda: waiting.wait(120))
    late.start()
    engine = zombie._engine
    assert engine is not None

    def hold(connection: Any, *_: Any) -> None:
        if threading.current_thread() is writer:
            writing.set()
            waiting.wait(120)

    writing = threading.Event()
    sa.event.listen(
        engine, "after_cursor_execute", lambda c, cur, statement, *_: hold(c) if "INTO events" in statement else None
    )
    writer = threading.Thread(target=zombie.write, args=(numbered([event(1), event(2)], 2),))
    writer.start()
    assert writing.wait(120)
    # When the successor writes the same rows and more
    other = threading.Thread(target=successor.write, args=(numbered([event(1), event(2), event(3)], 2),))
    other.start()
    other.join(0.3)
    assert other.is_alive()
    waiting.set()
    for thread in (writer, other, late):
        thread.join(240)
    # Then the rows of both are there once
    assert sorted(delays(url)) == [0, 1, 2, 3]
    zombie.close()
    successor.close()


@pytest.mark.parametrize("columns", ["delay INTEGER", "delay INTEGER, id TEXT"])
def test_append_needs_no_unique_id_and_writes_it_where_there_is_a_column_for_it(url: str, columns: str) -> None:  # noqa: F811
    execute(url, f"CREATE TABLE events ({columns})")
    destination = opened(url, mode="append")
    destination.write(numbered([event(1)], 1))
    destination.close()
    assert execute(url, "SELECT * FROM events") == [(1, event(1).id) if "id" in columns else (1,)]


def test_the_index_table_may_be_named(url: str) -> None:  # noqa: F811
    destination = opened(url, mode="append", **{"index-table": "progress"})
    destination.write(numbered([event(1), event(2)], 1))
    destination.close()
    assert execute(url, "SELECT pipeline, destination, epoch, number FROM progress") == [("p", "d", 7, 2)]
