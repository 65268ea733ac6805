"""The thread that keeps a lease: what ends it, and what it asks again after."""

from __future__ import annotations

from conduit_tasks.delivery.lease_renewer import LeaseRenewer
from conduit_tasks.errors import BrokerUnavailable, Fenced
from tests.delivery.fakes import FakePort
from tests.waiting import until


def test_a_lease_is_kept_through_a_broker_that_cannot_be_reached_for_a_while() -> None:
    # Given a broker that cannot be reached for three renewals, and then again
    port = FakePort(1, [0])
    port.fail_at = lambda _: BrokerUnavailable("no connection") if port.renewals in (2, 3, 5) else None
    lost: list[BaseException] = []
    with LeaseRenewer(port, 0.001, lost.append) as renewer:
        # Then the lease is renewed after them as before them, and nobody is told that it is lost
        until(lambda: port.renewals > 9, seconds=60)
        renewer.check()
    assert not lost


def test_a_lease_that_is_lost_is_told_once_and_not_asked_for_again() -> None:
    # Given a broker that cannot be reached, and by then another holder
    port = FakePort(1, [0])
    error = Fenced("another holds it")
    port.fail_at = lambda _: BrokerUnavailable("no connection") if port.renewals == 1 else error
    lost: list[BaseException] = []
    with LeaseRenewer(port, 0.001, lost.append) as renewer:
        until(lambda: bool(lost), seconds=60)
    assert lost == [error]
    assert renewer.error is error
    assert port.renewals == 2
