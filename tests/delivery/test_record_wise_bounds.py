"""What bounds the record-wise engine: records in flight and read ahead, the lease, the rate, the pipe."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery import ahead
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.lanes import KEY_LANES
from conduit_tasks.errors import BrokerUnavailable, ConfigError, Fenced, Unavailable
from conduit_tasks.topology import UNTOLD, Delivery
from tests.delivery.fakes import FOREVER, FakePort, Tape, Target, work_of
from tests.waiting import until

BUSY = Outcome("failed", "503 Service Unavailable", 503)


@pytest.mark.proves("C13", "C10")
def test_what_is_sent_and_not_confirmed_stays_bounded_while_the_broker_is_slow() -> None:
    # Given a broker that takes so long for each confirm that a target has time for many records, however slow it is
    port = FakePort(8000, list(range(8000)))
    target = Target()

    def slow(name: str) -> None:
        enough = min(8000, port.confirmed.count + 600)
        until(lambda: name != "confirm" or len(target.sends) >= enough)

    port.fail_at = slow  # type: ignore[assignment]
    most = 0

    def watch(seq: int) -> None:
        nonlocal most
        most = max(most, len(target.sends) + 1 - port.confirmed.count)

    target.on_send = watch
    # When a target takes records faster
    deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=32))
    # Then sending pauses at the documented bound
    assert most <= 32 + UNTOLD
    assert most > 500
    assert port.complete


@pytest.mark.proves("C13")
def test_reading_stays_a_bounded_number_of_records_ahead() -> None:
    # Given a micro-batch of many batches, and a target that stops answering after ten records
    port = FakePort(50_000, range(50_000))  # type: ignore[arg-type]
    read = 0
    whole = work_of(port, rows_per_batch=500)

    def rows() -> Any:
        nonlocal read
        for seqs, batch in whole.rows():
            read += len(seqs)
            yield seqs, batch

    target = Target(lambda seq, _: DELIVERED if seq < 10 else BUSY)
    work = work_of(port)
    work = type(work)(**{**work.__dict__, "rows": rows})
    # When it is given up
    with pytest.raises(Unavailable):
        deliver(work, target, port, Delivery())
    # Then only little of it was read
    assert read <= 4_000


@pytest.mark.proves("I4")
def test_a_lost_lease_ends_all_sends_at_once_and_confirms_nothing_more() -> None:
    # Given a lease that another one took after some confirms
    port = FakePort(5000, list(range(5000)))
    port.fail_at = lambda name: Fenced("a newer token exists") if len(port.calls) > 2 else None
    target = Target()
    target.pause = lambda _: 0.001
    # When the broker says so
    with pytest.raises(Fenced):
        deliver(work_of(port), target, port, Delivery(order_by="none", max_unconfirmed=16))
    # Then sending is over
    assert len(target.sends) < 5000
    assert target.in_flight == 0
    assert target.closed == 1


@pytest.mark.proves("I4")
def test_a_lease_lost_between_flushes_is_noticed_by_the_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a target that takes long, and a lease that is lost meanwhile
    from conduit_tasks.settings import settings as installation

    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.06")
    installation.cache_clear()
    port = FakePort(10, list(range(10)))
    port.fail_at = lambda name: Fenced("a newer token exists") if name == "renew" else None
    target = Target()
    target.pause = lambda _: 600.0
    began = time.monotonic()
    # When it is renewed in the background
    try:
        with pytest.raises(Fenced):
            deliver(work_of(port), target, port, Delivery(timeout=1200))
    finally:
        monkeypatch.undo()
        installation.cache_clear()
    # Then the send under way is given up
    assert time.monotonic() - began < 300
    assert target.in_flight == 0


@pytest.mark.proves("I4", "T6")
@pytest.mark.parametrize("target", [Target(lambda *_: BUSY), Tape(lambda _: Unavailable("gone"))], ids=["one", "many"])
def test_who_was_fenced_meanwhile_does_not_say_that_the_destination_is_down(target: Any) -> None:
    # Given a delivery that stood still: its sends have timed out before it hears that another one has its lease
    port = FakePort(10, list(range(10)))
    port.fail_at = lambda name: Fenced("a newer token exists") if name == "renew" else None
    # Then its word is that it is fenced
    with pytest.raises(Fenced):
        deliver(work_of(port), target, port, Delivery())
    # And where the broker cannot be asked, it says what it knows
    port.fail_at = lambda name: BrokerUnavailable("no connection") if name == "renew" else None
    with pytest.raises(Unavailable, match=r"503|gone"):
        deliver(work_of(port), target, port, Delivery())


@pytest.mark.proves("I4")
def test_no_send_begins_after_the_lease_allows_it() -> None:
    # Given a lease that ends now, and a broker that cannot prolong it enough
    port = FakePort(10, list(range(10)), send_until=time.monotonic() - 1)
    target = Target()
    # When delivery would begin
    with pytest.raises(ConfigError, match=r"delivery\.timeout"):
        deliver(work_of(port), target, port, Delivery())
    # Then nothing is sent
    assert not target.sends
    assert port.renewals >= 1


@pytest.mark.parametrize("target", [Target(), Tape()], ids=["one", "many"])
def test_a_process_that_stands_still_behind_a_renewal_renews_again(target: Any) -> None:
    # Given a lease whose first renewals are over when they are looked at, because the process stood still
    port = FakePort(10, list(range(10)), send_until=time.monotonic() - 1)
    port.fail_at = lambda _: setattr(port, "send_until", FOREVER) if port.renewals == 3 else None
    # Then that is no fault of the file
    deliver(work_of(port), target, port, Delivery())
    assert port.complete


@pytest.mark.proves("T9")
def test_a_rate_limit_bounds_sends_per_second() -> None:
    port = FakePort(60, list(range(60)))
    began = time.monotonic()
    deliver(work_of(port), Target(), port, Delivery(order_by="none", max_unconfirmed=20, rate_limit=200))
    assert time.monotonic() - began >= (60 - 20 - 1) / 200


@pytest.mark.proves("O1", "O2")
@pytest.mark.parametrize(("pipe", "most"), [("resend", 1), ("sequential", 1), ("resend-multi", 8), ("stream", 8)])
def test_a_pipe_has_as_many_unconfirmed_as_its_discipline_allows(pipe: str, most: int) -> None:
    port = FakePort(200, list(range(200)))
    target = Target()
    deliver(
        work_of(port, key=lambda seq: b"%d" % seq),
        target,
        port,
        Delivery(pipe=pipe, order_by="key", max_unconfirmed=8),
    )
    assert target.most_in_flight == most
    assert most <= KEY_LANES


@pytest.mark.proves("C13")
def test_the_ranges_that_are_confirmed_apart_stay_bounded_behind_a_record_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a first record that takes long, and every second one behind it refused, so that nacks wait for their turn
    to vote, then reading stops before the confirmed ranges are many, and goes on once it is through."""
    total = 6_000
    monkeypatch.setattr(ahead, "LOOK_AHEAD", 128)
    monkeypatch.setattr(ahead, "NACKS", 100)
    port = FakePort(total, range(total))  # type: ignore[arg-type]
    most = 0

    def told(name: str) -> None:
        nonlocal most
        most = max(most, len(port.confirmed.ranges))

    port.fail_at = told  # type: ignore[assignment]
    target = Target(lambda seq, _: DELIVERED if seq % 2 or not seq else Outcome("refused", "400", 400))
    target.pause = lambda seq: 2.0 if seq == 0 else 0.0
    deliver(work_of(port, rows_per_batch=100), target, port, Delivery(order_by="none", max_unconfirmed=32))
    assert port.complete
    assert port.counts.nacked == total // 2 - 1
    assert 50 < most < 600
