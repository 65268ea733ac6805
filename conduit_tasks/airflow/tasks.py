"""What the Python tasks of a DAG call; brokers and connectors are imported when one runs, never at parsing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from conduit_tasks.airflow.alerts import looking
from conduit_tasks.errors import ConfigError, InvariantBroken, NotDurable, PipelineStopped, StateLost
from conduit_tasks.logs import about

log = logging.getLogger(__name__)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """What a retry cannot mend fails the task at once: a wrong setting, a stopped pipeline, a broken
    invariant, a state that is lost."""
    try:
        yield
    except (ConfigError, PipelineStopped, NotDurable, InvariantBroken, StateLost) as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def plan(pipeline_id: str, run_id: str, params: Mapping[str, Any]) -> dict[str, Any] | bool:
    """Plans the run; False (nothing to read, deliver, ack or collect) short-circuits everything after it."""
    from conduit_tasks.micro_batch.plan import plan_run

    limits = {"max-records": int(params["max-records"])} if params.get("max-records") else None
    with about(pipeline=pipeline_id, run=run_id), looking(pipeline_id, run_id), fail_without_retry():
        result = plan_run(pipeline_id, run_id, limits)
        log.info("%s", result.reason)
    if not result.work:
        return False
    return {"micro_batch": result.micro_batch, "reason": result.reason, "left_out": dict(result.left_out)}


def ack(pipeline_id: str, source_id: str, run_id: str, ti: Any = None) -> dict[str, Any]:
    """Acks one source up to the lowest cursor, and collects; acts on the broker's state alone.

    Fails, when all that is done, where this run's `plan` had to leave the source out: such a run is no success.
    """
    from conduit_tasks.micro_batch.acks import ack_source

    context = about(pipeline=pipeline_id, run=run_id, source=source_id)
    with context, looking(pipeline_id, run_id), fail_without_retry():
        done = ack_source(pipeline_id, source_id, run_id)
        log.info("acked %s, collected %d micro-batches", done.get("acked"), len(done.get("collected") or ()))
    planned = ti.xcom_pull(task_ids="plan") if ti is not None else None
    if isinstance(planned, dict) and (why := planned.get("left_out", {}).get(source_id)):
        raise AirflowFailException(f"the source {source_id} was left out of this run: {why}")
    return done
