"""What has no bound of its own goes to Redis in portions, each of which may be repeated, and all of it arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conduit_tasks.broker import ranges as ranges_module
from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Letter
from conduit_tasks.errors import ConfigError, Fenced, PipelineStopped
from conduit_tasks.micro_batch.rebuild import Rebuilt, apply
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.redis_client.portions import PORTION
from conduit_tasks.redis_client.script import Script
from tests.broker.conftest import DESTINATIONS, Feed, cut_off, letter, piece

MANY = 4 * PORTION + 100


def letters(m: int = 1, count: int = MANY) -> list[Letter]:
    return [(0, m, seq, 0) for seq in range(count)]


def dead(broker: Broker, of: list[Letter], destination: str = "x") -> None:
    """In the index, as confirms put them there."""
    batch = broker.redis.pipeline(transaction=False)
    for epoch, m, seq, ordinal in of:
        batch.hset(broker.keys.dead(destination), f"{epoch}-{m}-{seq}-{ordinal}", "1700000000000:1:http 400")
    batch.execute()


def test_a_replay_of_any_number_of_portions_goes_on_where_it_was_left(feed: Feed) -> None:
    """Given a replay with more portions done than a Lua function can return values, when its task is tried again, then
    it is told of all of them."""
    broker, token = feed.broker, feed.lease("x").token
    broker.replays.begin("x", "r", token, "made", generation="1", retention=60.0)
    portions = {str(n): "0-9" for n in range(2 * MANY)}
    broker.redis.hset(broker.keys.replay("x", "r"), mapping=portions)
    share = broker.replays.begin("x", "r", token, "made", generation="1", retention=60.0)
    assert len(share.done) == 2 * MANY
    assert all(ranges.count == 10 for ranges in share.done.values())


@pytest.mark.usefixtures("twice")
def test_a_redrive_claims_and_gives_back_any_number_of_letters(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    token = feed.lease("x").token
    epoch, claimed = broker.redrives.claim("x", token, "me", [*of, (0, 9, 9, 9)])
    assert (epoch, claimed) == (1, of), "one redrive, of all that are letters"
    assert broker.redrives.claimed("x") == set(of)
    broker.redrives.settle("x", token, 1, dict.fromkeys(of[:PORTION], REDRIVEN), {})
    broker.redrives.mark("x", token, [s.key for s in broker.redrives.settled("x")], over=True)
    assert broker.redrives.claimed("x") == set()
    assert not broker.redis.exists(broker.keys.redrive("x"))
    assert {(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in broker.dead_letters.entries("x")} == set(of[PORTION:])


def test_what_a_holder_that_died_had_claimed_is_open_again(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    broker.redrives.claim("x", feed.lease("x").token, "me", of)
    broker.redrives.settle("x", feed.lease("x").token, 1, {of[0]: REDRIVEN}, {})
    epoch, claimed = broker.redrives.claim("x", feed.lease("x").token, "another", of[:10])
    assert (epoch, claimed) == (2, of[1:10])
    assert broker.redrives.claimed("x") == set(of[1:10])
    assert [s.key for s in broker.redrives.settled("x")] == of[:1], "until its store is marked"


def test_any_number_of_letters_is_purged_but_for_those_under_way(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    broker.redrives.claim("x", feed.lease("x").token, "me", of[:3])
    assert broker.redrives.purge("x", of) == of[:3]
    assert broker.dead_letters.count("x") == 3


@pytest.mark.usefixtures("twice")
def test_a_confirm_of_any_number_of_ranges_and_letters_is_one_as_far_as_counts_go(feed: Feed) -> None:
    """Given more ranges, letters and keys to park than a confirm takes, then all of it is told, and counted once."""
    broker, m = feed.broker, feed.sealed(40_000)
    ranges = [(n, n) for n in range(0, 2 * ranges_module.MOST + 50, 2)]
    dead_ones = [letter(m, n) for n in range(0, 2 * MANY, 2)]
    park = {f"key-{n}": (m, n, 0) for n in range(PORTION + 5)}
    token, counts = feed.lease("x").token, {"matched": len(ranges), "nacked": MANY}
    broker.deliveries.confirm("x", m, token, ranges, counts, dead=dead_ones, park=park, run="r", retention=60.0)
    state = broker.deliveries.get("x")
    assert state.confirmed.ranges == tuple(ranges)
    assert (state.counters["matched"], state.counters["nacked"]) == (len(ranges), MANY)
    assert broker.dead_letters.count("x") == MANY
    assert len(broker.redrives.parked("x")) == len(park)
    assert RangeSet.parse(broker.redeliveries.confirmed_by("x", ["r"])["r"]["1"]).ranges == tuple(ranges)


def test_a_redrive_settles_any_number_of_letters_in_a_step(feed: Feed) -> None:
    broker, of = feed.broker, letters()
    dead(broker, of)
    token = feed.lease("x").token
    epoch, _ = broker.redrives.claim("x", token, "me", of)
    again = [replace(letter(1, seq), epoch=epoch) for seq in range(MANY)]
    broker.redrives.settle("x", token, 1, dict.fromkeys(of, AGAIN), {"redriven": 7}, dead=again)
    assert {(s.key, s.outcome, s.epoch, s.by) for s in broker.redrives.settled("x")} == {
        (k, AGAIN, epoch, "me") for k in of
    }
    assert {e.epoch for e in broker.dead_letters.entries("x")} == {epoch}
    assert broker.dead_letters.count("x") == MANY
    assert broker.deliveries.get("x").counters["redriven"] == 7


def test_a_replay_settles_any_number_of_letters_and_ranges(feed: Feed) -> None:
    broker, of, token = feed.broker, letters(), feed.lease("x").token
    dead(broker, of)
    broker.replays.begin("x", "r", token, "made", generation="1", retention=60.0)
    epoch, _ = broker.redrives.claim("x", token, "me", of)
    ranges = [(n, n) for n in range(0, 2 * ranges_module.MOST + 50, 2)]
    settled = dict.fromkeys(of, REDRIVEN)
    broker.replays.confirm("x", "r", token, 3, ranges, {"redelivered": len(ranges)}, settled=settled)
    share = broker.replays.share("x", "r")
    assert share is not None
    assert share.done[3].ranges == tuple(ranges)
    assert {(s.key, s.epoch, s.by) for s in broker.redrives.settled("x")} == {(key, epoch, "me") for key in of}
    assert broker.dead_letters.count("x") == 0


def test_what_failed_before_the_fan_out_is_dispatched_record_by_record(feed: Feed) -> None:
    """Given records that became letters of two destinations, far more than one step takes, and one that alone became
    more, then they change hands in steps, each of which has all of a record's letters."""
    broker, of = feed.broker, letters(count=PORTION + 100)
    dead(broker, of, "")
    token = broker.leases.acquire("redrive", "t").token
    broker.redrives.claim("", token, "me", of)
    each = [
        replace(letter(1, seq), record=replace(letter(1, seq).record, ordinal=n)) for seq in range(20) for n in (0, 1)
    ]
    each += [replace(letter(1, 5), record=replace(letter(1, 5).record, ordinal=n)) for n in range(2, MANY)]
    to = {"x": each, "y": [letter(1, seq) for seq in range(PORTION + 100)]}
    following = broker.redrives.dispatch(token, 1, dict.fromkeys(of, REDRIVEN), to, [])
    assert following > 2
    assert broker.dead_letters.count("") == 0
    assert (broker.dead_letters.count("x"), broker.dead_letters.count("y")) == (len(each), PORTION + 100)
    assert [s.key for s in broker.redrives.settled("")] == of


def nacked(m: int, seqs: range) -> list[DeadLetter]:
    return [letter(m, seq, "sources.a", "RecordError") for seq in seqs]


def ready(feed: Feed, total: int) -> int:
    """A micro-batch that only has to be sealed."""
    m = feed.open(total)
    feed.stage(m, total)
    return m


def seal(feed: Feed, m: int, dead: list[DeadLetter]) -> bool:
    with feed.broker.leases.acquire("seal", "t") as lease:
        return feed.broker.micro_batches.seal(m, lease.token, manifest="m", total=MANY, bytes=1, matched={}, dead=dead)


@pytest.mark.usefixtures("twice")
def test_any_number_of_letters_is_sealed_at_once_as_far_as_anybody_sees(feed: Feed) -> None:
    m, seen = ready(feed, MANY), list[int]()
    once = Script.__call__

    def look(self: Script, *args: object, **more: object) -> list[object]:
        if self.name == "index":
            seen.append(len(list(feed.broker.dead_letters.entries())))
        return once(self, *args, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "__call__", look)
        assert seal(feed, m, nacked(m, range(MANY)))
    assert seen
    assert not any(seen), "no letter of a micro-batch that is not sealed is one"
    assert [e.seq for e in feed.broker.dead_letters.entries()] == list(range(MANY))
    assert feed.broker.redis.hget(feed.broker.keys.micro_batch(m), "indexing") is None


@pytest.mark.parametrize("then", ["many", "few", "undone"])
def test_letters_of_an_attempt_to_seal_that_was_cut_off_are_none(feed: Feed, then: str) -> None:
    """Given a seal that died between its portions, and a processor that fails other records at the next attempt, then
    only what that one failed is a dead letter."""
    m = ready(feed, MANY)
    feed.broker.redis.hset(feed.broker.keys.dead(""), "1-1-5-0", "1700000000000:1:x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conduit_tasks.broker.scripts.SEAL", scripts.START)
        with pytest.raises(TypeError):
            seal(feed, m, nacked(m, range(MANY)))
    assert feed.broker.dead_letters.count() > PORTION
    if then == "undone":
        feed.broker.micro_batches.undo_unsealed()
        seqs = []
    else:
        seqs = list(range(7, MANY, 2)) if then == "many" else [7]
        assert seal(feed, m, [n for n in nacked(m, range(MANY)) if n.seq in set(seqs)])
    assert [e.seq for e in feed.broker.dead_letters.entries() if e.epoch == 0] == seqs
    assert feed.broker.dead_letters.count() == len(seqs) + 1, "letters of other attempts at other times stay"


def rebuilt(broker: Broker) -> Rebuilt:
    """More of everything than one command takes."""
    keys, many = broker.keys, range(MANY)
    hashes = {keys.micro_batch(m): {"state": "sealed", "sealed_at": "1", "total": "5"} for m in range(101, 101 + MANY)}
    hashes |= {keys.destination(d): {"cursor": "100", "status": "running", "epoch": "0"} for d in DESTINATIONS}
    hashes |= {keys.dead("x"): {f"0-100-{n}-0": "1:1:x" for n in many}, keys.ack("a"): {"m": "100"}}
    hashes |= {keys.planned("a"): {f"file-{n}": "5" for n in many}, keys.totals: {"read": "1"}}
    return Rebuilt(100 + MANY, 100, hashes)


def everything(broker: Broker) -> dict[str, dict[str, str]]:
    keys = list(broker.redis.scan_iter("*", count=1000, _type="hash"))
    # The rolling series stay as they are: no decision depends on them.
    keys = [k for k in keys if ":lease:" not in k and ":series:" not in k and k != broker.keys.pipeline]
    return dict(zip(keys, broker.access.read(*(("HGETALL", k) for k in keys))))


@pytest.mark.proves("X7", "I5")
def test_a_rebuilding_of_any_size_that_is_cut_off_anywhere_is_done_by_the_next(feed: Feed) -> None:
    """Given a rebuilding that dies behind any of its portions, then the pipeline stands still and says so until another
    one has done it, and the state is what one that was not cut off makes."""
    broker, wanted = feed.broker, rebuilt(feed.broker)
    feed.sealed(10)
    token = feed.lease("x").token
    apply(broker, wanted, replace=True)
    whole = everything(broker)
    assert whole.keys() == wanted.hashes.keys(), "and nothing of before is left"
    names = scripts_of_one(broker, wanted)
    assert names.count("rebuild_write") > 8
    for at in (1, len(names) // 2, len(names) - 1):
        with pytest.MonkeyPatch.context() as patch:
            cut_off(patch, at)
            with pytest.raises(ConnectionResetError):
                apply(broker, rebuilt(broker), replace=True)
        with pytest.raises((PipelineStopped, Fenced)):
            broker.deliveries.confirm("x", 101, token, [(0, 4)], {"matched": 5})
        with pytest.raises(PipelineStopped, match=r"is being rebuilt; .*`conduit broker rebuild p --replace`"):
            broker.micro_batches.open({"a": [piece(0, 5)]}, "config", broker.micro_batches.latest_sealed() + 1)
        with pytest.raises(PipelineStopped):
            broker.collection.begin(101)
        apply(broker, rebuilt(broker), replace=True)
        assert everything(broker) == whole
        assert broker.micro_batches.latest_sealed() == 100 + MANY
    with pytest.raises(ConfigError, match="holds state"):
        apply(broker, wanted, replace=False)
    assert broker.leases.acquire("destinations.x", "t").token > token


def scripts_of_one(broker: Broker, wanted: Rebuilt) -> list[str]:
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 10**6, names)
        apply(broker, wanted, replace=True)
    return names


@pytest.mark.proves("X4")
def test_a_key_whose_position_has_moved_meanwhile_stays_parked(feed: Feed) -> None:
    """Given that a record of a key was parked, or settled, since the caller looked, then the key is not unparked."""
    broker, token = feed.broker, feed.lease("x").token
    broker.redis.hset(broker.keys.parked("x"), mapping={"moved": "2-1-0", "still": "1-0-0"})
    broker.redrives.unpark("x", token, "moved", (1, 5, 0))
    broker.redrives.unpark("x", token, "still", (1, 0, 0))
    assert broker.redrives.parked("x") == {"moved": (2, 1, 0)}
