"""Redis forgets a redrive, or a replay: no cursor says that anything was sent, and what was sent stands all the same
(SEMANTICS X7, X2, X3)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.broker import scripts
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.cli.main import app
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import BrokerUnavailable, SpoolError, StateLost
from conduit_tasks.micro_batch import forgotten
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import Context, open_spool, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.resend import redrive as redriving
from conduit_tasks.settings import settings
from conduit_tasks.spool.checkpoint import Checkpoint
from tests.faults.forgetful import MINUTES, Forgetful, broker
from tests.faults.parts import drive, events
from tests.faults.test_forgotten_letters import Source, delivered, letters
from tests.micro_batch.harness import here, payloads, write_pipeline
from tests.replay.test_replay import Place, again

__all__ = ["broker"]

PLAIN = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: to, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
"""
IN = ("2013-03-01", "2013-04-01", "late")


@pytest.mark.proves("X7", "X4", "C9", "T1")
@pytest.mark.parametrize("chunk", [2, 1_000])
@pytest.mark.parametrize("part", range(5))
def test_parked_records_that_were_released_in_the_second_that_redis_forgot_stand(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch, part: int, chunk: int
) -> None:
    # Given a letter and six records behind it, which were sent in a second of which Redis keeps a part
    monkeypatch.setattr(redriving, "CHUNK", chunk)
    source = waiting(quick)
    early = broker.log()
    assert redrive().exit_code == 0
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    late = broker.log()
    broker.put_back(early + late[len(early) : len(early) + (len(late) - len(early)) * part // 4])
    # When more of their key comes, and what is left to redrive is
    source.put(("A", ""), ("B", ""))
    drive()
    redrive()
    drive()
    # Then each was sent once, and none waits
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert delivered(quick, "B") == [0, 9]
    assert letters("a") == []
    assert copies() == 0


@pytest.mark.proves("X7", "T1")
def test_a_rebuild_of_which_redis_forgot_the_end_is_done_again_by_the_next_run(quick: Path, broker: Forgetful) -> None:
    """Given a state that was rebuilt, and a Redis that forgot the end of that, then
    nothing stands still: the next run does it again."""
    write_pipeline(quick, "p", PLAIN)
    rows = events(quick / "data", 3)
    drive()
    with opened("p", "look") as context:
        keys = {"pipeline": context.broker.keys.pipeline, "leases": ()}
        context.broker.access.run(scripts.REBUILD_BEGIN, keys, nonce="of one who died", replace=True)
    rows += events(quick / "data", 4, 3)
    drive()
    assert payloads(quick / "out.jsonl") == rows


@pytest.mark.proves("X7", "X2")
def test_a_redrive_right_after_redis_forgot_another_one_cuts_nothing_away(quick: Path, broker: Forgetful) -> None:
    # Given a redrive that Redis has forgotten
    waiting(quick)
    early = broker.log()
    assert redrive().exit_code == 0
    broker.put_back(early)
    # When the operator redrives before any run
    assert redrive().exit_code == 0
    # Then nothing is cut away, and nothing sent twice
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    assert letters("a") == []


@pytest.mark.proves("X7", "X2")
def test_a_record_whose_letters_of_two_attempts_are_brought_back_is_redriven_once(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a letter from before the fan-out, and another one of a redrive that died before Redis knew of it
    source = Source(quick, parks=False)
    source.put(("z", ""))
    drive()
    early = broker.log()
    source.put(("x", "early"), ("y", "early"), ("z", ""))
    drive()
    with monkeypatch.context() as patch:
        patch.setattr(Redrives, "dispatch", dies)
        assert redrive().exit_code != 0
    # When Redis forgets the letter, so that what is stored is brought back
    broker.put_back(early)
    drive()
    assert len(letters("")) == 4
    fix(quick)
    # Then a redrive sends the record once, and both letters are gone
    done = redrive()
    assert done.exit_code == 0, done.output
    assert letters("") == letters("a") == []
    assert delivered(quick, "x") == [1]
    assert delivered(quick, "y") == [2]


@pytest.mark.proves("X7", "I4")
@pytest.mark.parametrize("again_by", ["redrive", "replay"])
def test_what_redis_forgets_right_before_something_is_sent_again_is_not_cut_away(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch, again_by: str
) -> None:
    # Given something sent again of which Redis knows nothing, as it forgot it after somebody had looked
    monkeypatch.setattr(forgotten, "remember", lambda context: False)
    if again_by == "redrive":
        waiting(quick)
        file = quick / "out/a.jsonl"
    else:
        joined(quick)
        file = quick / "out/late.jsonl"
    early = broker.log()
    do = {"redrive": redrive, "replay": lambda: again(*IN, run="other")}[again_by]
    do()
    there = file.read_bytes()
    broker.put_back(early)
    # When he sends it again, then he notices before he opens the file
    if again_by == "redrive":
        shutil.rmtree(next(quick.rglob("_redriven")))
        assert isinstance(redrive().exception, StateLost)
    else:
        with pytest.raises(StateLost):
            again(*IN)
    assert file.read_bytes() == there


@pytest.mark.proves("X7", "T1")
def test_a_cleared_task_that_sent_again_in_the_second_that_redis_forgot_stands(quick: Path, broker: Forgetful) -> None:
    # Given a task that was cleared, and sent what it had confirmed once more, which Redis has forgotten
    write_pipeline(quick, "p", MINUTES)
    rows = events(quick / "data", 3)
    plan_run("p", "one")
    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
        for cleared in (False, True):
            early = broker.log()
            deliver(context, cleared=cleared)
    assert payloads(quick / "out/a.jsonl") == rows * 2
    broker.put_back(early)
    # When more comes, then nothing is cut away
    rows = rows * 2 + events(quick / "data", 3, 3)
    drive()
    assert payloads(quick / "out/a.jsonl") == rows


@pytest.mark.proves("X7", "X4")
def test_copies_of_parked_records_stay_until_a_mark_says_that_they_were_sent(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a spool that takes no mark once the letter itself was sent
    waiting(quick)
    before = copies()
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "mark", failing(Marker.mark, after=1))
        # When it is redriven, then the copies of what followed stay
        assert redrive().exit_code != 0
    assert copies() == before == 6
    # And the next redrive removes them
    redrive()
    assert copies() == 0
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.proves("X7", "X2")
def test_a_letter_that_a_replay_sent_is_closed_in_the_store_once_a_mark_says_so(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a letter whose cause is fixed
    bad = 'eq .Payload.After.t "2013-03-01T03:00:00+00:00"'
    place = Place(quick, "file", f"processors: [{{id: bad, plugin: error, condition: '{{{{ {bad} }}}}'}}]")
    place.feed(5)
    drive()
    assert letters("a") == [(1, 3)]
    place.more = ""
    place.write(place.names)
    # When a replay sends it, and no mark can be written
    with monkeypatch.context() as patch:
        patch.setattr(Marker, "mark", failing(Marker.mark, after=0))
        with pytest.raises(SpoolError):
            again("2013-03-01", "2013-04-01", "a", what="failed")
    # Then the store does not say so yet, but after the next redrive
    assert place.got("a") == [0, 1, 2, 4, 3]
    assert not marked()
    redrive()
    assert marked()
    assert place.got("a") == [0, 1, 2, 4, 3]


@pytest.mark.proves("X7", "X2")
def test_a_letter_that_a_cleared_task_sent_is_closed_in_the_store_once_a_mark_says_so(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a letter whose cause is fixed
    source = Source(quick, parks=False)
    source.put(("x", "late"), ("z", ""))
    plan_run("p", "one")
    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
        deliver(context, cleared=False)
    fix(quick)
    # When its task is cleared, and no mark can be written
    with monkeypatch.context() as patch, opened("p", "one") as context:
        patch.setattr(Marker, "mark", failing(Marker.mark, after=0))
        deliver(context, cleared=True)
    # Then the store does not say so yet, but after the next redrive
    assert letters("a") == []
    assert not marked()
    redrive()
    assert marked()
    assert delivered(quick, "x") == [0]


@pytest.mark.proves("X7")
def test_a_mark_of_an_older_version_that_counts_no_words_is_read(
    quick: Path, broker: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a mark without the count, as older versions wrote it, and a Redis that has none either
    source = Source(quick, parks=False)
    source.put(("A", ""))
    drive()
    with opened("p", "r") as context:
        destination = context.broker.keys.destination("a")
        context.broker.redis.hdel(destination, "words")
        (path,) = quick.rglob("checkpoint/destinations.a-*.json")
        mark = json.loads(path.read_text())
        assert mark["hashes"]["destination"].pop("words")
        path.write_text(json.dumps(mark))
        assert Checkpoint(open_spool(context.pipeline), "p").read("destinations.a")["destinations.a"].known.words == 0
    # When more is delivered, then nothing seems forgotten, and from now on it is counted
    source.put(("A", ""))
    drive()
    assert delivered(quick, "A") == [0, 1]
    assert "Redis has forgotten" not in caplog.text
    with opened("p", "r") as context:
        assert Checkpoint(open_spool(context.pipeline), "p").read("destinations.a")["destinations.a"].known.words


def waiting(home: Path) -> Source:
    """A letter of key A with six records behind it, whose cause is fixed."""
    source = Source(home, parks=True)
    source.put(("B", ""), ("A", "late"), *[("A", "")] * 6)
    drive()
    fix(home)
    return source


def fix(home: Path) -> None:
    """Mends the cause of the letters."""
    for file in (home / "include" / "pipelines").iterdir():
        file.write_text(file.read_text().replace("eq .Payload.After.bad", "eq .Payload.After.k"))


def joined(home: Path) -> Place:
    """A pipeline with a destination that was added after 30 records, and 10 more since."""
    place = Place(home, "file")
    place.feed(30)
    drive()
    place.add("late")
    place.feed(10)
    drive()
    assert place.got("late") == list(range(30, 40))
    return place


def redrive() -> Result:
    return CliRunner().invoke(app, ["dead-letters", "redrive", "p"])


def deliver(context: Context, *, cleared: bool) -> None:
    deliver_destination(context, "a", here, run="one", wait=5.0, cleared=cleared, progress=lambda **_: None)


def marked() -> bool:
    """Whether the store says that a letter was sent again."""
    return bool(Marks(settings().path(settings().dead_letters), "p").read("a"))


def copies() -> int:
    """Records that are stored as parked."""
    store = DeadLetterStore(settings().path(settings().dead_letters), "p", parked=True)
    return len(list(store.rows("a", ["id"])))


def dies(*_: Any) -> None:
    raise BrokerUnavailable("gone")


def failing(mark: Callable[[Marker], None], after: int) -> Callable[[Marker], None]:
    """`mark`, which fails when it was called `after` times."""
    calls: list[Marker] = []

    def fails(self: Marker) -> None:
        calls.append(self)
        if len(calls) > after:
            raise SpoolError("the disk is full")
        mark(self)

    return fails
