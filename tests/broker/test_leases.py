"""Leases: tokens only grow, only the newest one changes state, a successor waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import Fenced, LeaseHeld, PipelineStopped, Terminated, Unavailable
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings
from tests.broker.conftest import Feed, make_broker
from tests.redis_server import RedisServer
from tests.waiting import until


@pytest.fixture
def hasty(redis_server: RedisServer) -> Any:
    """Leases that expire after 50 ms, with 30 ms of grace."""
    broker = make_broker(redis_server, ttl=0.05, grace=0.03)
    yield broker
    broker.close()


def test_a_lease_that_is_held_says_by_whom_and_until_when(broker: Broker) -> None:
    broker.leases.acquire("processors", "run 1")
    with pytest.raises(LeaseHeld, match="run 1") as raised:
        broker.leases.acquire("processors", "run 2")
    assert raised.value.node == "processors"
    assert 0 < raised.value.until / 1e6 - broker.access.now() <= broker.access.lease_ttl


@pytest.mark.proves("I4")
def test_tokens_grow_and_are_not_below_the_servers_clock(broker: Broker) -> None:
    before = broker.access.now()
    first = broker.leases.acquire("processors", "a")
    first.release()
    second = broker.leases.acquire("processors", "a")
    assert second.token > first.token >= int(before * 1e6)


@pytest.mark.proves("I4")
def test_a_token_is_higher_than_the_last_one_even_if_the_clock_went_back(broker: Broker) -> None:
    # Given a last token from a clock that was ahead
    ahead = 9_000_000_000_000_001
    broker.redis.hset(broker.keys.lease("processors"), "token", str(ahead))
    # Then the next one is the next number, to the last digit
    assert broker.leases.acquire("processors", "a").token == ahead + 1


@pytest.mark.proves("I4")
def test_a_dead_holder_is_waited_for_no_longer_where_the_servers_clock_went_back(hasty: Broker) -> None:
    # Given a holder that died, by a clock that was an hour ahead of what the server has now
    first, key = hasty.leases.acquire("processors", "a"), hasty.keys.lease("processors")
    ahead = {name: str(int(hasty.access.hash(key)[name]) + 3_600_000_000) for name in ("until", "token")}
    hasty.redis.hset(key, mapping=ahead)
    # Then nobody who merely looks is sent away: whoever acquires it waits for one lease time, and takes it over
    assert hasty.leases.held_for("processors") == 0.0
    second = hasty.leases.acquire("processors", "b", wait=120.0)
    assert second.token > int(ahead["token"]) > first.token
    # And one that lives keeps it
    assert hasty.leases.attach("processors", second.token).token == second.token


@pytest.mark.proves("I4")
def test_a_lease_is_renewed_again_when_redis_is_back_after_a_longer_absence(
    own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a lease that is kept
    server = own_redis()
    broker = Broker("p", connect(Settings(redis_url=server.url), retries=0), lease_ttl=0.3)
    lease = broker.leases.acquire("processors", "a")

    with keeping(lease):
        # When Redis is away for longer than the client tries
        server.kill()
        until(lambda: caplog.text.count("is not renewed") >= 2)
        server.start()
        # Then the lease is renewed from there on
        back = time.monotonic()
        until(lambda: lease.expires_at > back + lease.ttl)
    assert broker.leases.attach("processors", lease.token).token == lease.token
    broker.close()


def test_a_successor_waits_out_expiry_and_grace(hasty: Broker) -> None:
    began = time.monotonic()
    first = hasty.leases.acquire("processors", "a")
    second = hasty.leases.acquire("processors", "b", wait=120.0)
    assert time.monotonic() - began >= 0.08
    assert second.token > first.token
    assert time.monotonic() > first.expires_at


@pytest.mark.proves("I4")
def test_the_old_holder_is_fenced_and_changes_nothing(hasty: Broker) -> None:
    feed = Feed(hasty)
    m = feed.sealed()
    feed.lease("x")
    hasty.leases.acquire("destinations.x", "successor", wait=120.0)
    before = hasty.access.hash(hasty.keys.destination("x"))
    with pytest.raises(Fenced):
        feed.confirm("x", m, [(0, 9)])
    with pytest.raises(Fenced):
        hasty.deliveries.vote("x", m, feed.lease("x").token, 0, [("n", 1)], size=1, threshold=0)
    with pytest.raises(Fenced):
        feed.lease("x").renew()
    assert hasty.access.hash(hasty.keys.destination("x")) == before
    assert hasty.lifecycle.status().error is None


def test_expiry_alone_does_not_fence(hasty: Broker) -> None:
    feed = Feed(hasty)
    m = feed.sealed()
    lease = feed.lease("x")
    while hasty.access.now() * 1e6 <= int(hasty.access.hash(hasty.keys.lease("destinations.x"))["until"]):
        time.sleep(0.005)
    feed.confirm("x", m, [(0, 9)])
    lease.renew()
    assert hasty.deliveries.get("x").cursor == m


@pytest.mark.proves("I4")
def test_a_released_lease_changes_nothing_any_more(feed: Feed) -> None:
    m = feed.sealed()
    feed.lease("x").release()
    with pytest.raises(Fenced, match="nobody holds it"):
        feed.confirm("x", m, [(0, 9)])


def test_renewing_moves_the_expiry_that_the_holder_counts_with(broker: Broker) -> None:
    lease = broker.leases.acquire("processors", "a")
    first = lease.expires_at
    lease.renew()
    assert lease.expires_at > first
    # conservative: measured from before the call
    assert lease.expires_at <= time.monotonic() + lease.ttl


def test_another_process_of_the_holder_works_under_the_same_token(broker: Broker) -> None:
    lease = broker.leases.acquire("destinations.x", "driver", ttl=45.0)
    attached = broker.leases.attach("destinations.x", lease.token)
    assert (attached.token, attached.ttl) == (lease.token, 45.0)
    lease.release()
    with pytest.raises(Fenced):
        broker.leases.attach("destinations.x", lease.token)


def test_a_drain_is_not_handed_over_while_something_was_sealed_that_it_has_not_seen(feed: Feed) -> None:
    # Given a holder that saw micro-batch 1 as the last
    m = feed.sealed()
    lease = feed.lease("x")
    feed.confirm("x", m, [(0, 9)])
    # When another run seals the next one at that moment
    following = feed.sealed()
    # Then the holder keeps the lease, and lets go only when it has seen it
    assert lease.release(expect_sealed=m) is False
    feed.confirm("x", following, [(0, 9)])
    assert lease.release(expect_sealed=following) is True
    assert lease.release(expect_sealed=following) is True


@pytest.mark.proves("C10")
def test_attempts_without_progress_are_counted_across_holders_that_died(hasty: Broker) -> None:
    feed = Feed(hasty)
    m = feed.sealed()
    # Given two holders that disappeared
    assert [hasty.leases.acquire("destinations.x", "t", wait=120.0).attempts for _ in range(2)] == [1, 2]
    assert hasty.lifecycle.status().status == "recovering"
    # When the third one gets a single range confirmed
    feed.leases["x"] = third = hasty.leases.acquire("destinations.x", "t", wait=120.0)
    assert third.attempts == 3
    feed.confirm("x", m, [(0, 0)])
    # Then counting begins again
    assert hasty.leases.acquire("destinations.x", "t", wait=120.0).attempts == 1


def test_leaving_in_good_order_or_by_an_error_of_ours_is_not_an_attempt_without_progress(broker: Broker) -> None:
    for _ in range(3):
        with broker.leases.acquire("processors", "t") as lease:
            assert lease.attempts == 1
        with pytest.raises(Unavailable), broker.leases.acquire("processors", "t") as lease:
            raise Unavailable("down")
    with pytest.raises(RuntimeError), broker.leases.acquire("processors", "t"):
        raise RuntimeError("a worker died")
    assert broker.leases.acquire("processors", "t").attempts == 2


@pytest.mark.proves("I4")
def test_of_many_that_ask_at_once_one_gets_it(broker: Broker) -> None:
    won: list[int] = []

    def ask() -> None:
        with suppress(LeaseHeld):
            won.append(broker.leases.acquire("processors", "t").token)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(won) == 1


@pytest.mark.usefixtures("twice")
@pytest.mark.proves("I5")
def test_an_acquisition_sent_twice_gets_one_token_and_counts_once(broker: Broker) -> None:
    lease = broker.leases.acquire("processors", "t")
    assert lease.attempts == 1
    assert broker.access.hash(broker.keys.lease("processors"))["token"] == str(lease.token)


def test_a_stopped_pipeline_stops_its_holders(feed: Feed) -> None:
    m = feed.sealed()
    feed.lease("x")
    feed.broker.lifecycle.force_stop()
    with pytest.raises(PipelineStopped, match="conduit start p"):
        feed.confirm("x", m, [(0, 9)])


@pytest.mark.parametrize("busy", [False, True])
def test_a_process_that_is_asked_to_end_leaves_its_lease_only_where_executors_may_still_send(
    broker: Broker, busy: bool
) -> None:
    with pytest.raises(Terminated), broker.leases.acquire("destinations.out", "a", ttl=30):
        raise Terminated(busy=busy)
    assert (broker.leases.held_for("destinations.out") > 0) is busy
    assert int(broker.access.hash(broker.keys.lease("destinations.out"))["attempts"]) == int(busy)


@pytest.mark.proves("I4")
def test_one_attempt_of_a_holders_executors_is_heard_at_a_time(redis_server: RedisServer) -> None:
    # Given a driver whose executor is at work
    broker = make_broker(redis_server, ttl=0.4, grace=0.1)
    lease = broker.leases.acquire("destinations.x", "driver")
    first = broker.leases.attempt("destinations.x", "x", lease.token)
    # When it ends, then the next attempt need not wait, and the word of the first counts no more
    with first:
        first.renew()
    began = time.monotonic()
    second = broker.leases.attempt("destinations.x", "x", lease.token)
    assert lease.token < first.token < second.token
    with pytest.raises(Fenced):
        first.renew()
    # When the second stands still, and its driver does not, then the third has to wait until the second has expired
    with keeping(lease):
        third = broker.leases.attempt("destinations.x", "x", lease.token)
        assert time.monotonic() - began >= 0.4
    with pytest.raises(Fenced):
        second.renew()
    third.renew()
    lease.renew()
    # When another driver takes the lease, then nobody of the first driver is heard
    lease.release()
    newer = broker.leases.acquire("destinations.x", "another driver")
    assert newer.token > third.token
    for old in (lease, third):
        with pytest.raises(Fenced):
            old.renew()
    with pytest.raises(Fenced):
        broker.leases.attempt("destinations.x", "x", lease.token)
    broker.close()


@pytest.mark.proves("I4")
def test_a_dead_attempt_is_waited_for_no_longer_where_the_servers_clock_went_back(broker: Broker) -> None:
    # Given an executor that died, by a clock that was an hour ahead of what the server has now; its driver lives
    lease, key = broker.leases.acquire("destinations.x", "driver"), broker.keys.lease("destinations.x")

    def attempt(nonce: str) -> list[Any]:
        keys = {"lease": key, "pipeline": broker.keys.pipeline, "destination": broker.keys.destination("x")}
        return broker.access.run(scripts.ATTEMPT, keys, token=lease.token, shard="", nonce=nonce, grace=0)

    attempt("first")
    ahead = int(broker.access.hash(key)["attempt_until"]) + 3_600_000_000
    broker.redis.hset(key, "attempt_until", str(ahead))
    # When the next attempt looks, then it waits for one lease time at most, which begins with its first look
    waits = []
    for _ in range(2):
        with pytest.raises(LeaseHeld) as raised:
            attempt("second")
        waits.append(raised.value.until)
    assert waits[0] == waits[1] <= (broker.access.now() + broker.access.lease_ttl) * 1e6


@pytest.mark.proves("C16", "I4")
def test_no_attempt_begins_in_a_stopped_pipeline(feed: Feed) -> None:
    token = feed.lease("x").token
    feed.broker.lifecycle.force_stop()
    with pytest.raises(PipelineStopped):
        feed.broker.leases.attempt("destinations.x", "x", token)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("busy", [False, True])
def test_who_is_asked_to_end_while_its_lease_is_on_its_way_gives_that_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    # Given a lease whose answer does not arrive any more, as SIGTERM comes first
    run = broker.access.run

    def asked_to_end(script: Any, *args: Any, **more: Any) -> Any:
        answer = run(script, *args, **more)
        if script is scripts.ACQUIRE and not ended:
            ended.append(answer)
            raise Terminated(busy=busy)
        return answer

    ended: list[Any] = []
    monkeypatch.setattr(broker.access, "run", asked_to_end)
    with pytest.raises(Terminated):
        broker.leases.acquire("processors", "run 1")
    # Then it is free at once, unless executors may be at work under it
    assert (broker.leases.held_for("processors") > 0) == busy
    # And counts as no attempt
    if not busy:
        assert broker.leases.acquire("processors", "run 2").attempts == 1


def test_who_is_asked_to_end_while_somebody_else_has_the_lease_changes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = broker.leases.acquire("processors", "run 1")
    run = broker.access.run

    def asked_to_end(script: Any, *args: Any, **more: Any) -> Any:
        with suppress(LeaseHeld):
            run(script, *args, **more)
        raise Terminated(busy=False)

    with monkeypatch.context() as asked:
        asked.setattr(broker.access, "run", asked_to_end)
        with pytest.raises(Terminated):
            broker.leases.acquire("processors", "run 2")
    lease.renew()
    assert broker.leases.held_for("processors") > 0
