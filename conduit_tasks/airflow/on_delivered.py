"""Steps after a delivery, as a destination's task calls them: a DAG that is triggered, or a Python function. The events
of an asset have a task of their own (`asset_steps.py`)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.airflow import at_once
from conduit_tasks.errors import BrokerUnavailable

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.micro_batch.on_delivered import Delivered

log = logging.getLogger(__name__)

LOOK = 2.0
"""Seconds between two looks for what was delivered, while the node is at work."""


@contextmanager
def stepping(pipeline_id: str, destination: str, run_id: str) -> Iterator[None]:
    """Calls the destination's step while the block runs, for each micro-batch as it is delivered, and after it for the
    rest, however it ends. Raises what the step raises, after the block. Does nothing if the file names no step; if that
    is an asset, only notes from where on."""
    from conduit_tasks.micro_batch import on_delivered
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.every import every
    from conduit_tasks.pipeline.load import get_pipeline

    wanted = get_pipeline(pipeline_id).destination(destination).on_delivered
    if not wanted:
        yield
        return
    with opened(pipeline_id, run_id) as context:
        on_delivered.begin(context, destination)
        if "asset" in wanted:
            yield
            return
        step = step_of(wanted)

        def along() -> bool:
            try:
                on_delivered.call(context, destination, step)
            except BrokerUnavailable as error:
                log.warning("the step of %s is not called for a moment: %s", destination, error)
            except Exception as error:  # noqa: BLE001 - it is the user's; the call after the block raises it
                log.error("the step of %s failed, and is called again when the task ends: %s", destination, error)
                return False
            return True

        try:
            with every(f"step of {destination}", LOOK, along):
                yield
        finally:
            on_delivered.call(
                context, destination, step, wait=context.settings.lease_ttl + context.settings.lease_grace
            )
            end_stop(context)


def end_stop(context: Context) -> None:
    """Ends a graceful stop that has waited for steps; the acks may have looked before the last one was called."""
    from conduit_tasks.micro_batch.plan import in_flight

    if context.broker.lifecycle.stored_status() == "stopping":
        in_flight(context)


def step_of(wanted: Mapping[str, str]) -> Callable[[Delivered], None]:
    """Returns the function that does the step of a file: `dag` or `call`. Raises ConfigError if there is none such."""
    if "dag" in wanted:
        return lambda delivered: trigger(wanted["dag"], delivered)
    from conduit_tasks.include import load_function

    function = load_function(wanted["call"], "on-delivered")
    return function


def trigger(dag: str, delivered: Delivered) -> None:
    """Starts a run of a DAG, with the micro-batch as its conf. Its id is made of the micro-batch: a second call starts
    no second run. Raises AirflowException if Airflow refuses."""
    run_id = f"delivered__{delivered.destination[:60]}.{hashlib.sha256(delivered.id.encode()).hexdigest()[:16]}"
    otherwise = f"on-delivered: the DAG {dag} is not triggered for micro-batch {delivered.micro_batch}"
    at_once.trigger(dag, run_id, delivered.told, otherwise)
    log.info("triggered %s for micro-batch %d", dag, delivered.micro_batch)
