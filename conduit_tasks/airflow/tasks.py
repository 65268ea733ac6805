"""What the Python tasks of a DAG call; brokers and connectors are imported when one runs, never at parsing."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, DagRunTriggerException

from conduit_tasks.airflow.alerts import look, looking
from conduit_tasks.errors import ConfigError, InvariantBroken, NotDurable, PipelineStopped, StateLost
from conduit_tasks.logs import about
from conduit_tasks.pipeline.names import dag_id

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
    return {"micro_batch": result.micro_batch, "reason": result.reason} if result.work else False


def ack(pipeline_id: str, source_id: str, run_id: str, follows: bool = False) -> dict[str, Any]:
    """Acks one source as far as every destination is, and collects, while the run goes on and once behind it; acts on
    the broker's state alone. `follows`: starts the next run where this one left something that need not wait."""
    from conduit_tasks.micro_batch.acks import ack_along

    context = about(pipeline=pipeline_id, run=run_id, source=source_id)
    with context, looking(pipeline_id, run_id), fail_without_retry():
        done = ack_along(pipeline_id, source_id, run_id, lambda: look(pipeline_id, run_id))
        log.info("acked %s, collected %d micro-batches", done["acked"], done["collected"])
    if follows and done["again"]:
        log.info("a run follows at once: %s", done["again"])
        raise _next_run(pipeline_id, run_id)
    return done


def _next_run(pipeline_id: str, run_id: str) -> DagRunTriggerException:
    """Airflow starts the run once this one has ended; it is named after this one, so that there is only one."""
    return DagRunTriggerException(
        trigger_dag_id=dag_id(pipeline_id),
        dag_run_id=f"conduit__after_{hashlib.sha256(run_id.encode()).hexdigest()[:16]}",
        conf={},
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=60,
        deferrable=False,
    )
