from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.delivery.retry import JITTER, LONGEST_BACKOFF, RetryPolicy
from conduit_tasks.errors import Unavailable
from conduit_tasks.topology import Delivery

FAILED = Outcome("failed", "503")


def delays(options: Delivery, outcome: Outcome = FAILED) -> list[float]:
    policy = RetryPolicy(options)
    found = []
    while (delay := policy.delay(len(found) + 1, outcome)) is not None:
        found.append(delay)
    return found


@pytest.mark.proves("T9")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("constant", [0.5, 0.5, 0.5, 0.5]), ("linear", [0.5, 1.0, 1.5, 2.0]), ("exponential", [0.5, 1.0, 2.0, 4.0])],
)
def test_the_wait_follows_the_backoff_policy_but_for_its_jitter(policy: str, expected: list[float]) -> None:
    found = delays(Delivery(retry=4, backoff_policy=policy, backoff_delay=0.5))  # type: ignore[arg-type]
    assert len(found) == 4
    for delay, exact in zip(found, expected, strict=True):
        assert exact <= delay <= exact + 0.5 * JITTER


@pytest.mark.proves("T9")
@settings(deadline=None)
@given(st.integers(0, 40), st.sampled_from(["constant", "linear", "exponential"]), st.floats(0.001, 60))
def test_a_send_is_tried_once_and_retried_as_often_as_said(retry: int, policy: str, delay: float) -> None:
    options = Delivery(retry=retry, backoff_policy=policy, backoff_delay=delay)  # type: ignore[arg-type]
    found = delays(options)
    assert len(found) == retry == RetryPolicy(options).attempts - 1
    assert all(d >= 0 for d in found)
    if policy == "exponential":
        assert max(found, default=0) <= LONGEST_BACKOFF + delay * JITTER


@pytest.mark.proves("T6")
def test_an_answer_that_a_retry_cannot_improve_is_not_retried() -> None:
    policy = RetryPolicy(Delivery(retry=5))
    assert policy.delay(1, Outcome("refused", "401", 401)) is None
    assert policy.delay(1, DELIVERED) is None


@pytest.mark.proves("T6", "T9")
def test_retry_after_is_honoured_up_to_its_limit_and_never_shortens_the_backoff() -> None:
    options = Delivery(retry=1, backoff_policy="constant", backoff_delay=1.0, retry_after_max=10.0)
    assert delays(options, Outcome("failed", "429", 429, retry_after=5.0)) == [5.0]
    assert delays(options, Outcome("failed", "429", 429, retry_after=3600.0)) == [10.0]
    assert delays(options, Outcome("failed", "429", 429, retry_after=0.1))[0] >= 1.0


@pytest.mark.proves("T9")
def test_a_blocking_call_is_repeated_by_the_same_policy_and_raises_its_last_error() -> None:
    slept: list[float] = []
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        raise Unavailable(f"call {calls}", retry_after=2.0)

    retrying = RetryPolicy(Delivery(retry=2, backoff_delay=0.1)).calling(lambda _: None, slept.append)
    with pytest.raises(Unavailable, match="call 3"):
        retrying(call)
    assert slept == [2.0, 2.0]
