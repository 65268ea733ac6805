"""Retries after a failure: what counts as a failure, and when a node is left alone for the moment.

A failure is an error that ends a node, except: a fault of its records (a nack), a destination that is down and waited
for, a stop, another holder at work on the node, and trouble of Redis itself. A driver that was killed counts, too. So
does a source that is away while it is read, as the others do not wait for it; but it degrades nothing, however long it
lasts.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from conduit_tasks.connectors.outcome import clip
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
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.failures import Failing
    from conduit_tasks.topology import Recovery

log = logging.getLogger(__name__)

NO_FAILURE = (Unavailable, PipelineStopped, LeaseHeld, Fenced, BrokerUnavailable, NotDurable, StateLost)


@contextmanager
def counting(context: Context, node: str) -> Iterator[None]:
    """Counts an error that ends the block as a failure of the node, and reraises it."""
    try:
        yield
    except NO_FAILURE as error:
        if isinstance(error, Unavailable) and Node(node).kind == "sources":
            limitless = replace(context.pipeline.recovery, max_retries=-1)
            count(context, node, f"{type(error).__name__}: {error}", type(error).__name__, limitless)
        raise
    except Exception as error:
        count(context, node, f"{type(error).__name__}: {error}", type(error).__name__)
        raise


def count(context: Context, node: str, error: str, error_class: str, policy: Recovery | None = None) -> None:
    """Counts a failure. If Redis is gone meanwhile, only logs that, as the failure itself is more important."""
    try:
        context.broker.failures.note(
            node, uuid.uuid4().hex, clip(error), error_class, policy or context.pipeline.recovery
        )
    except BrokerUnavailable as problem:
        log.warning("a failure of %s is not counted: %s", node, problem)


def died(pipeline_id: str, node: str, run_id: str, how: str) -> None:
    """Counts a failure because the node's driver ended without a word: it was killed, or Spark could not start it."""
    with opened(pipeline_id, run_id) as context:
        count(context, node, f"its driver ended without a word ({how}); see the task's log", "killed")


def left_alone(context: Context, node: str) -> Failing | None:
    """Returns the node's failures if it is too early to try again, None if not."""
    found = context.broker.failures.failing(node)
    return found[0] if found and too_early(context, found[0]) else None


def too_early(context: Context, failing: Failing) -> bool:
    """Returns whether the delay is not over yet. It counts as over if it is longer than the longest delay: the server's
    clock went back since."""
    return 0 < failing.wait <= context.pipeline.recovery.max_delay
