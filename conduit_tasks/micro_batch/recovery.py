"""Trying again after a failure: what counts as one, and when a node is left alone for the moment.

A failure is what ends a node and is neither its records' fault (a nack), nor a destination that is down and waited for,
nor a stop, nor that somebody else works on it, nor Redis itself. A driver that was killed is one too. So is a source
that is away while it is read, as the others do not wait for it; but however long it is, it degrades nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from conduit_tasks.delivery.outcome import clip
from conduit_tasks.errors import (
    BrokerUnavailable,
    Fenced,
    LeaseHeld,
    NotDurable,
    PipelineStopped,
    StateLost,
    Unavailable,
)
from conduit_tasks.micro_batch.context import Context, opened

if TYPE_CHECKING:
    from conduit_tasks.broker.recovery import Failing
    from conduit_tasks.pipeline.topology import Recovery

log = logging.getLogger(__name__)

NO_FAILURE = (Unavailable, PipelineStopped, LeaseHeld, Fenced, BrokerUnavailable, NotDurable, StateLost)


@contextmanager
def counting(context: Context, node: str) -> Iterator[None]:
    """Counts what ends the block as a failure of the node, and lets it pass."""
    try:
        yield
    except NO_FAILURE as error:
        if isinstance(error, Unavailable) and node.startswith("sources."):
            limitless = replace(context.pipeline.recovery, max_retries=-1)
            count(context, node, f"{type(error).__name__}: {error}", type(error).__name__, limitless)
        raise
    except Exception as error:
        count(context, node, f"{type(error).__name__}: {error}", type(error).__name__)
        raise


def count(context: Context, node: str, error: str, error_class: str, policy: Recovery | None = None) -> None:
    """Counts a failure; a Redis that is gone meanwhile is logged, as the failure itself is more to be known."""
    try:
        context.broker.failed(node, uuid.uuid4().hex, clip(error), error_class, policy or context.pipeline.recovery)
    except BrokerUnavailable as problem:
        log.warning("a failure of %s is not counted: %s", node, problem)


def died(pipeline_id: str, node: str, run_id: str, how: str) -> None:
    """The node's driver ended without a word: it was killed, or Spark could not start it."""
    with opened(pipeline_id, run_id) as context:
        count(context, node, f"its driver ended without a word ({how}); see the task's log", "killed")


def left_alone(context: Context, node: str) -> Failing | None:
    """The node's failures, where it is too early to try again."""
    found = context.broker.failing(node)
    return found[0] if found and too_early(context, found[0]) else None


def too_early(context: Context, failing: Failing) -> bool:
    """Whether its delay is not over yet. A longer one than there is: the server's clock went back since."""
    return 0 < failing.wait <= context.pipeline.recovery.max_delay
