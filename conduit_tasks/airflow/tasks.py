"""The Python tasks `plan` and `acks.<source>` of a DAG: what they call, which errors fail a task without a retry, and
that the acks fail of a source which was left out.

They import brokers and connectors when they run, never at parsing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from conduit_tasks.airflow.alerts import look, looking
from conduit_tasks.airflow.compat import AirflowFailException
from conduit_tasks.airflow.follow import follow
from conduit_tasks.errors import ConfigError, InvariantBroken, NotDurable, PipelineStopped, SourceError, StateLost
from conduit_tasks.exit_codes import STOPPED
from conduit_tasks.logs import about
from conduit_tasks.micro_batch.halting import ended_by_force
from conduit_tasks.pipeline.names import AFTER, dag_id

log = logging.getLogger(__name__)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Fails the task at once for errors that a retry cannot fix: a wrong setting, a stopped pipeline, a write that is
    not durable, a broken invariant, a lost state. A forceful stop ends the task's process in the middle of a call to a
    connector (`halting_call`)."""
    try:
        with ended_by_force(_end):
            yield
    except (ConfigError, PipelineStopped, NotDurable, InvariantBroken, StateLost) as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def _end(why: str) -> NoReturn:
    """Ends the task's process; Airflow takes the task for failed, and a retry finds the pipeline stopped."""
    log.error("%s", why)
    os._exit(STOPPED)


def plan(  # noqa: PLR0917 - what Airflow hands over by name
    pipeline_id: str,
    run_id: str,
    params: Mapping[str, Any],
    dag_run: Any = None,
    ti: Any = None,
    drain_limit: float = 0.0,
) -> dict[str, Any] | bool:
    """Plans the run. Returns False if there is nothing to read, deliver, ack or collect; that skips all later tasks.

    `drain_limit`: see `plan_run`; it counts for a run that its schedule has begun, and the first time: one that is
    cleared has work of its own.
    """
    from conduit_tasks.micro_batch.plan import plan_run

    most = params.get("max-records")
    run_id = run_of(pipeline_id, getattr(dag_run, "dag_id", None), run_id)
    limits = None if most is None else {"max-records": int(most)}
    with about(pipeline=pipeline_id, run=run_id), looking(pipeline_id, run_id), fail_without_retry():
        first = _scheduled(dag_run) and ti is not None and ti.try_number == 1
        by_hand = _by_hand(dag_run)
        result = plan_run(pipeline_id, run_id, limits, by_hand=by_hand, drain_limit=drain_limit if first else 0.0)
        log.info("%s", result.reason)
    if not result.work:
        return False
    return {"micro_batch": result.micro_batch, "reason": result.reason, "left_out": dict(result.left_out)}


def run_of(pipeline_id: str, dag: str | None, run_id: str) -> str:
    """Returns the id by which the broker knows a run: that of Airflow, with the DAG's if that is another one than the
    pipeline's own, as two DAGs may have runs of the same id."""
    return run_id if dag is None or dag == dag_id(pipeline_id) else f"{dag}/{run_id}"


def _by_hand(dag_run: Any) -> bool:
    """Returns whether a person has started the run and wants it to end, not its schedule or the run before it."""
    return dag_run is not None and not dag_run.run_id.startswith(AFTER) and not _scheduled(dag_run)


def _scheduled(dag_run: Any) -> bool:
    return dag_run is not None and dag_run.run_type in ("scheduled", "asset_triggered")


def ack(  # noqa: PLR0917 - what Airflow hands over by name
    pipeline_id: str,
    source_id: str,
    run_id: str,
    follows: bool = False,
    ti: Any = None,
    params: Mapping[str, Any] | None = None,
    plan_id: str = "plan",
) -> dict[str, Any]:
    """Acks one source as far as every destination has delivered, and collects: while the run goes on, and once after
    it. Uses the broker's state alone. `follows`: starts the next run if this one left work that need not wait.

    Fails at the end if this run had to leave the source out when it asked it last: such a run is no success.
    """
    from conduit_tasks.micro_batch.acks import ack_along

    run_id = run_of(pipeline_id, getattr(ti, "dag_id", None), run_id)
    context = about(pipeline=pipeline_id, run=run_id, source=source_id)
    with context, looking(pipeline_id, run_id), fail_without_retry():
        done = ack_along(pipeline_id, source_id, run_id, lambda: look(pipeline_id, run_id))
        log.info("acked %s, collected %d micro-batches", done["acked"], done["collected"])
    if follows and done["again"]:
        chosen = (params or {}).get("destinations")
        follow(ti, pipeline_id, run_id, done["began"], done["left"], chosen, done["again"])
    planned = ti.xcom_pull(task_ids=plan_id) if ti is not None else None
    why = done["left_out"]
    if why is None and isinstance(planned, dict):
        why = planned.get("left_out", {}).get(source_id)
    if why:
        left_out = SourceError(f"the source {source_id} was left out of this run: {why}")
        raise AirflowFailException(str(left_out)) from left_out
    return done
