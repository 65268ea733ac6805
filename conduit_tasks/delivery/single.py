"""Sends one record until its outcome is final, outside a micro-batch, such as a dead letter to its plugin: no lanes, no
broker."""

from __future__ import annotations

import asyncio

from conduit_tasks.connectors.base import Outcome, RecordDestination
from conduit_tasks.delivery.retry import RetryPolicy
from conduit_tasks.record.record import Record


async def send(
    destination: RecordDestination,
    record: Record,
    policy: RetryPolicy,
    timeout: float,  # noqa: ASYNC109 - per attempt
) -> tuple[Outcome, int]:
    """Returns the last outcome, and the number of attempts; no answer within `timeout` seconds is a failed one (T5)."""
    attempt = 1
    while True:
        try:
            outcome = await asyncio.wait_for(destination.send(record), timeout)
        except TimeoutError:
            outcome = Outcome("failed", f"no answer within {timeout:g} s")
        delay = policy.delay(attempt, outcome)
        if delay is None:
            return outcome, attempt
        attempt += 1
        await asyncio.sleep(delay)
