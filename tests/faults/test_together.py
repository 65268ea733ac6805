"""Several micro-batches of one destination under way at once (ADR 41): what goes together, and what a nack stops."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.shards import Shards
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.ledger.messages import Overall
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.recorded import ledger
from conduit_tasks.operate.status import snapshot
from conduit_tasks.settings import settings
from tests.faults.beside import Beside
from tests.faults.grouped import all_there, broker, changed, pipeline, sealed
from tests.faults.parts import Receiver, events
from tests.faults.test_shards import Hanging, beside, deliver, hanging
from tests.micro_batch.harness import deliver_again, here, run_once
from tests.waiting import until

__all__ = ["beside", "broker", "hanging"]


@pytest.mark.proves("I10", "C13")
def test_the_micro_batches_that_are_there_are_delivered_by_one_job_and_each_record_once(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    """Given four micro-batches of 300, 300, 300 and 50 records, then three tasks deliver all of them in one job; the
    state that is left is that of one micro-batch after the other, and the ledger names each record once."""
    pipeline(quick, receiver.url)
    events(quick / "data", 950)
    sealed(4)
    deliver(beside)
    assert beside.jobs == [[0, 1, 2]]
    all_there(receiver, 950, cursor=4)
    with opened("p", "run") as context:
        rows = ledger(context).read("to").to_pylist()
        assert {m: sum(row["records"] for row in rows if row["micro_batch"] == m) for m in range(1, 5)} == {
            **dict.fromkeys((1, 2, 3), 300),
            4: 50,
        }
        root = settings().path(settings().dead_letters)
        assert [Overall(context.pipeline, context.spool, root).of(m).acked.count for m in (1, 4)] == [300, 50]
        assert context.broker.redeliveries.confirmed_by("to", ["run"])["run"] == {
            **dict.fromkeys(("1", "2", "3"), "0-299"),
            "4": "0-49",
        }


def test_a_run_that_is_cleared_sends_again_the_micro_batches_that_it_had_under_way(
    quick: Path, receiver: Receiver, beside: Beside
) -> None:
    pipeline(quick, receiver.url)
    events(quick / "data", 600)
    sealed(2, "one")
    run_once("p", run="one", run_all=beside)
    assert beside.jobs == [[0, 1, 2]]
    deliver_again("p", "to", "one")
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"]) == (600, 600)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("order-by: none", "order-by: key"),
        ("order-by: none", "order-by: partition"),
        (", parallelism: 3", ""),
        ("parallelism: 3", "parallelism: 3, rate-limit: 100000, max-redeliveries: 5"),
    ],
)
def test_one_micro_batch_after_the_other_is_delivered_by_what_it_always_was(
    quick: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Given another order or one task, then nothing is divided together, and of what is stored for it there is
    nothing."""
    asked: list[Any] = []
    original = Shards.together
    monkeypatch.setattr(Shards, "together", lambda *args: asked.append(args) or original(*args))
    pipeline(quick, receiver.url)
    changed(quick, old, new)
    events(quick / "data", 600)
    sealed(2)
    deliver(here)
    assert bool(asked) == ("rate-limit" in new)
    all_there(receiver, 600, cursor=2)


def test_small_micro_batches_are_delivered_beside_each_other_and_the_older_one_holds_up_the_cursor_alone(
    quick: Path, hanging: Hanging, beside: Beside, broker: Broker
) -> None:
    """Given micro-batches of 100 records, which have one lane each, and one record of the first that is not answered,
    then the second and third are whole, and the cursor, the ack and `conduit status` stay before the first; once it is
    answered, the cursor passes all of them."""
    pipeline(quick, hanging.url, records=100)
    changed(quick, "timeout: 2s", "timeout: 240s")
    stuck(quick, first=100, then=200)
    sealed(3)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside)
        try:
            until(lambda: [len(d.open) for d in broker.deliveries.get("to").divisions] == [1, 0, 0], "the younger ones")
            found = broker.deliveries.get("to")
            assert (found.cursor, found.confirmed_of(2), found.confirmed_of(3)) == (0, 100, 100)
            (seen,) = snapshot("p")["destinations"]
            assert (seen["cursor"], seen["behind"], seen["lag"]["micro_batches"]) == (0, 3, 3)
            assert seen["lag"]["records"] == 300 - found.confirmed_beyond
            assert not broker.acks.due("in", ["to"], "delivered")
        finally:
            hanging.released.set()
        done.result()
    assert beside.jobs == [[0, 1, 2]]
    assert broker.deliveries.get("to").cursor == 3
    assert set(hanging.taken.values()) == {1}


def stuck(home: Path, first: int, then: int) -> None:
    """Writes so many records, of which number 7 has the key of requests that hang, and so many behind them."""
    rows = [{"n": n, "k": "stuck-1" if n == 7 else "k"} for n in range(first + then)]
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.proves("C6", "T4")
def test_a_nack_in_the_older_one_stops_the_pipeline_while_the_younger_ones_are_whole(
    quick: Path, hanging: Hanging, beside: Beside, broker: Broker
) -> None:
    """Given micro-batches of which the younger ones are whole when a record of the first is refused, then the pipeline
    is degraded, the cursor stays before the first, and nothing is acked; after a start the younger ones are not sent
    again."""
    pipeline(quick, hanging.url, records=100)
    changed(quick, "timeout: 2s", "timeout: 240s")
    hanging.answer = 400
    stuck(quick, first=100, then=200)
    sealed(3)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, beside)
        try:
            until(lambda: [len(d.open) for d in broker.deliveries.get("to").divisions] == [1, 0, 0], "the younger ones")
        finally:
            hanging.released.set()
        with pytest.raises(PipelineStopped):
            done.result()
    found = broker.deliveries.get("to")
    assert (found.cursor, broker.lifecycle.status().status, broker.dead_letters.count("to")) == (0, "degraded", 0)
    assert not broker.acks.due("in", ["to"], "delivered")
    hanging.answer = 204
    broker.lifecycle.start()
    deliver(beside, "two")
    assert beside.jobs == [[0, 1, 2], [0]]
    assert broker.deliveries.get("to").cursor == 3
    assert {n for n, times in hanging.taken.items() if times > 1} <= {7, *range(100)}
    assert set(hanging.taken) == set(range(300))
