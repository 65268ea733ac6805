"""An interval goes again to chosen destinations, and no live position moves (SEMANTICS X3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.errors import ConfigError, PipelineStopped
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend.prepare import prepared
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.resend.replay import Replayed, replay
from tests.delivery.shelf import shelves, tell  # noqa: F401 - a fixture
from tests.micro_batch.harness import payloads, run_until_quiet, write_pipeline

HEAD = """
version: "2.2"
pipelines:
  - id: p
    event-time: .Payload.After.t
    micro-batch: {max-records: 7}
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
"""


class Place:
    """Pipeline `p`: a record an hour from 2013-03-01 on, with n = 0, 1, …"""

    def __init__(self, home: Path, plugin: str = "shelf", more: str = "") -> None:
        self.home, self.plugin, self.more, self.fed = home, plugin, more and f", {more}", 0
        self.names: list[str] = []
        self.add("a")

    def add(self, name: str) -> None:
        """One more destination."""
        self.names.append(name)
        self.write(self.names)

    def write(self, names: list[str], further: str = "") -> None:
        """The pipeline's file, with these destinations and `further` lines."""
        kind = f"type: destination, plugin: {self.plugin}"
        text = "".join(f"      - {{id: {n}, {kind}, settings: {{path: out/{n}.jsonl}}{self.more}}}\n" for n in names)
        write_pipeline(self.home, "p", HEAD + text + further)

    def feed(self, count: int) -> None:
        file = self.home / "data" / "in.jsonl"
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as out:
            for n in range(self.fed, self.fed + count):
                t = datetime(2013, 3, 1, tzinfo=UTC) + timedelta(hours=n)
                out.write(json.dumps({"n": n, "t": t.isoformat()}) + "\n")
        self.fed += count

    def got(self, name: str) -> list[int]:
        rows = payloads(self.home / "out" / f"{name}.jsonl")
        return [(r["after"] if "after" in r else r.get("payload", {}).get("after", r))["n"] for r in rows]

    def live(self) -> Any:
        """Everything of the broker that says how far the live stream is."""
        with opened("p", "look") as context:
            broker, keys = context.broker, context.broker.keys
            return (
                [(broker.deliveries.get(n).cursor, broker.deliveries.get(n).confirmed) for n in self.names],
                [broker.access.hash(k) for k in (keys.planned("in"), keys.acked("in"), keys.index("in"))],
            )


def again(start: str, end: str, *names: str, what: str = "missing", run: str = "r") -> list[Replayed]:
    return replay("p", start, end, names, what, run=run, wait=120.0)


@pytest.fixture(params=["shelf", "binder"])
def place(home: Path, request: pytest.FixtureRequest) -> Place:
    return Place(home, request.param)


@pytest.mark.proves("X3")
def test_a_late_joiner_gets_history_and_then_live_without_a_gap(place: Place) -> None:
    # Given a destination added after 30 records, and 10 more since
    place.feed(30)
    run_until_quiet("p")
    place.add("late")
    place.feed(10)
    run_until_quiet("p")
    assert place.got("late") == list(range(30, 40))
    before = place.live()
    # When history is replayed as what is missing
    (outcome,) = again("2013-03-01", "2013-04-01", "late")
    # Then it has every record exactly once, the others got nothing, and live positions are what they were
    assert outcome.delivered == 30
    assert place.got("late") == [*range(30, 40), *range(30)]
    assert place.got("a") == list(range(40))
    assert place.live() == before
    # And another replay of it finds nothing missing
    assert again("2013-03-01", "2013-04-01", "late", run="other")[0].chosen == 0
    place.feed(2)
    run_until_quiet("p")
    assert place.got("late")[-2:] == [40, 41]


@pytest.mark.proves("X3", "X5")
def test_the_interval_is_half_open_and_records_are_marked_and_in_the_ledger(home: Path) -> None:
    place = Place(home)
    place.feed(48)
    run_until_quiet("p")
    ids = {row["n"]: row["id"] for row in payloads(home / "out" / "a.jsonl")}
    again("2013-03-01T10:00Z", "2013-03-01T20:00Z", what="all")
    rows = payloads(home / "out" / "a.jsonl")[48:]
    assert [row["n"] for row in rows] == list(range(10, 20))
    assert {row["n"]: row["id"] for row in rows} == {n: ids[n] for n in range(10, 20)}
    with opened("p", "look") as context:
        ledger = Ledger(context.spool, "p").read("a").to_pylist()
    assert sum(r["last"] - r["first"] + 1 for r in ledger if r["run"] == "r" and r["epoch"]) == 10


@pytest.mark.proves("X3")
def test_failed_sends_what_is_a_dead_letter_and_closes_it(home: Path) -> None:
    place = Place(home)
    place.feed(10)
    tell(home / "out" / "a.jsonl", "refuse", [3, 7])
    run_until_quiet("p")
    tell(home / "out" / "a.jsonl", "refuse", [7])
    (outcome,) = again("2013-03-01", "2013-03-02", what="failed")
    assert (outcome.chosen, outcome.delivered, outcome.dead) == (2, 1, 1)
    with opened("p", "look") as context:
        assert [e.epoch > 0 for e in context.broker.dead_letters.entries("a")] == [True]
    # What is a dead letter is not missing
    assert again("2013-03-01", "2013-03-02", run="other")[0].chosen == 0


@pytest.mark.proves("X3")
def test_a_replay_that_ended_begins_again_when_it_is_called_again(place: Place) -> None:
    place.feed(5)
    run_until_quiet("p")
    again("2013-03-01", "2013-03-02", what="all")
    assert place.got("a") == [*range(5)] * 2
    again("2013-03-01", "2013-03-02", what="all")
    assert place.got("a") == [*range(5)] * 3


@pytest.mark.proves("X3", "C10")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_any_script_a_replay_goes_on_and_a_file_has_each_record_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # Given history that a file destination misses
    place = Place(home, "binder")
    place.feed(20)
    run_until_quiet("p")
    place.add("late")
    with opened("p", "join"):
        pass
    before = place.live()
    real = Access.run
    counted = {scripts.REPLAY_BEGIN, scripts.REPLAY_CONFIRM, scripts.REPLAY_END, scripts.CLAIM, scripts.MARK}
    # When it dies around its k-th step, for every k, until one attempt lives
    for k in range(1, 50):
        seen = 0

        def dying(self: Access, script: Any, keys: Any, *, k: int = k, **args: Any) -> list[Any]:
            nonlocal seen
            mine = script in counted
            seen += mine
            if mine and seen == k and when == "before":
                raise KeyboardInterrupt
            answer = real(self, script, keys, **args)
            if mine and seen == k:
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(Access, "run", dying)
        try:
            again("2013-03-01", "2013-03-02", "late")
        except KeyboardInterrupt:
            continue
        finally:
            monkeypatch.setattr(Access, "run", real)
        break
    else:
        raise AssertionError("no attempt lived")
    # Then each record is there once, and live positions never moved
    assert place.got("late") == list(range(20))
    assert place.live() == before


@pytest.mark.proves("X3")
@pytest.mark.parametrize("status", ["stopped", "degraded"])
def test_a_pipeline_that_is_stopped_is_not_read_for_a_replay(place: Place, status: str) -> None:
    """Nothing of it would be delivered; and what began after a stop by force would be ended by it."""
    place.feed(3)
    run_until_quiet("p")
    with opened("p", "look") as context:
        context.broker.lifecycle.force_stop() if status == "stopped" else context.broker.lifecycle.fail(
            "seal", "broken", "Test"
        )
        with pytest.raises(PipelineStopped, match=status):
            again("2013-03-01", "2013-03-02", what="all")
        assert prepared(context, "r") is None
        context.broker.lifecycle.start()
    assert [outcome.delivered for outcome in again("2013-03-01", "2013-03-02", what="all")] == [3]


@pytest.mark.proves("X3")
def test_a_later_interval_waits_for_an_earlier_one_under_way(home: Path) -> None:
    from conduit_tasks.errors import LeaseHeld

    place = Place(home)
    place.feed(48)
    run_until_quiet("p")
    with opened("p", "other") as context:
        context.broker.replays.turn("a", "first", 0, 60.0)
        with pytest.raises(LeaseHeld, match="run first, which is before"):
            replay("p", "2013-03-02", "2013-03-03", (), "all", run="second", wait=0.0)
        context.broker.replays.turn("a", "first", 0, 0)
    assert replay("p", "2013-03-02", "2013-03-03", (), "all", run="second", wait=0.0)[0].delivered == 24


@pytest.mark.proves("X3")
def test_what_a_destination_missed_while_it_was_away_is_not_taken_for_delivered(home: Path) -> None:
    place = Place(home)
    place.add("b")
    place.feed(10)
    run_until_quiet("p")
    place.write(["a"])
    with opened("p", "look") as context:
        context.broker.redis.hset(context.broker.keys.pipeline, "collected", "1000")
    place.write(["a", "b"])
    with pytest.raises(ConfigError, match="what b is missing is not known"):
        again("2013-03-01", "2013-03-02", "b")


@pytest.mark.parametrize(
    ("start", "end", "names", "what", "said"),
    [
        ("2013-03-02", "2013-03-01", (), "all", "is empty"),
        ("soon", "2013-03-01", (), "all", "of the interval, 'soon', is no date"),
        ("2013-03-01", "2013-03-02", ("x",), "all", "no destination x"),
        ("2013-03-01", "2013-03-02", (), "some", "one of missing"),
    ],
)
def test_wrong_words_are_named(home: Path, start: str, end: str, names: tuple[str, ...], what: str, said: str) -> None:
    Place(home)
    with pytest.raises(ConfigError, match=said):
        again(start, end, *names, what=what)


@pytest.mark.proves("B8", "X2", "X3")
def test_what_is_sent_again_leaves_the_mark_of_an_at_most_once_destination_alone(home: Path) -> None:
    # Given a destination that keeps how far sending may have come, and refused a record
    place = Place(home, more="dead-letter-queue: {window-size: 0}, delivery: {guarantee: at-most-once}")
    (home / "out").mkdir(exist_ok=True)
    refuse = home / "out" / "a.jsonl.refuse"
    refuse.write_text("[1]")
    place.feed(3)
    run_until_quiet("p")
    assert place.got("a") == [0, 2]

    def mark() -> str | None:
        with opened("p", "look") as context:
            return context.broker.access.field(context.broker.keys.destination("a"), "begun")

    before = mark()
    assert before
    # When it is redriven, and everything is replayed
    refuse.unlink()
    with opened("p", "again") as context:
        redrive(context, Selection(), "ada", wait=60.0)
    again("2013-03-01", "2013-03-02", "a", what="all")
    # Then all of it came again, and a live delivery finds its own mark
    assert place.got("a") == [0, 2, 1, 0, 1, 2]
    assert mark() == before
