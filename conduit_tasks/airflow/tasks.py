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
    if not result.work:
        return False
    return {"micro_batch": result.micro_batch, "reason": result.reason, "left_out": dict(result.left_out)}


def ack(pipeline_id: str, source_id: str, run_id: str, follows: bool = False, ti: Any = None) -> dict[str, Any]:
    """Acks one source as far as every destination is, and collects, while the run goes on and once behind it; acts on
    the broker's state alone. `follows`: starts the next run where this one left something that need not wait.

    Fails, when all that is done, where this run's `plan` had to leave the source out: such a run is no success.
    """
    from conduit_tasks.micro_batch.acks import ack_along

    context = about(pipeline=pipeline_id, run=run_id, source=source_id)
    with context, looking(pipeline_id, run_id), fail_without_retry():
        done = ack_along(pipeline_id, source_id, run_id, lambda: look(pipeline_id, run_id))
        log.info("acked %s, collected %d micro-batches", done["acked"], done["collected"])
    if follows and done["again"] and goes_on(ti):
        log.info("a run follows at once: %s", done["again"])
        raise next_run(pipeline_id, run_id, done["began"], done["left"])
    planned = ti.xcom_pull(task_ids="plan") if ti is not None else None
    if isinstance(planned, dict) and (why := planned.get("left_out", {}).get(source_id)):
        raise AirflowFailException(f"the source {source_id} was left out of this run: {why}")
    return done


def goes_on(ti: Any) -> bool:
    """Whether the task's run is under way still: one that somebody has marked as ended is followed by none."""
    return ti is None or str(ti.get_dagrun_state(ti.dag_id, ti.run_id)) == "running"


def next_run(pipeline_id: str, run_id: str, began: float, left: int | None) -> DagRunTriggerException:
    """Airflow starts the run once this one has ended; it is named after this one, so that there is only one, and after
    its beginning, as a run that is cleared is followed anew. `left`: new records that it may read; None: no limit."""
    named = hashlib.sha256(f"{run_id} {began}".encode()).hexdigest()[:16]
    return DagRunTriggerException(
        trigger_dag_id=dag_id(pipeline_id),
        dag_run_id=f"conduit__after_{named}",
        conf={} if left is None else {"max-records": left},
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=60,
        deferrable=False,
    )
