"""`<pipeline>.replay`: sends the records of a run's data interval again (SEMANTICS X3). Nothing schedules it: Airflow's
Backfill starts it, `airflow backfill create`, or a trigger with `from` and `to`.

`plan` reads and fixes the records; one task per destination delivers them. All are Python tasks, as in the redrive.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, TaskGroup
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from conduit_tasks.airflow.factory import RETRIES, RETRY_DELAY, destinations_param
from conduit_tasks.airflow.tasks import fail_without_retry
from conduit_tasks.airflow.timetable import ReplayDeltaTimetable, ReplayTimetable
from conduit_tasks.pipeline.names import replay_dag_id, safe_name
from conduit_tasks.pipeline.schedule import parse_schedule
from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

WAIT = 600.0
"""Seconds to wait for a live delivery to hand over; Airflow's retries wait on."""
TIMEOUT = timedelta(hours=12)
"""Limit of a task. A run waits this long for the runs of earlier intervals, as long as they are alive."""
BETWEEN = 600.0
"""Seconds for which a run keeps its turn while its destinations wait for a worker after `plan`."""


def build_replay_dag(pipeline: Pipeline) -> DAG:
    """Builds the DAG: `plan`, then every destination side by side."""
    with DAG(
        replay_dag_id(pipeline.id),
        description=f"Replays intervals of {pipeline.id}",
        schedule=replay_timetable(pipeline.replay_interval),
        start_date=None,
        catchup=False,
        max_active_runs=4,
        is_paused_upon_creation=False,
        default_args={"owner": "conduit", "retries": RETRIES, "retry_delay": RETRY_DELAY},
        params=_params(pipeline),
        doc_md=__doc__,
        tags=["conduit", "replay"],
    ) as dag:
        plan = PythonOperator(
            task_id="plan",
            python_callable=prepare_run,
            op_kwargs={"pipeline_id": pipeline.id},
            execution_timeout=TIMEOUT,
        )
        with TaskGroup("destinations") as group:
            for destination in pipeline.destinations:
                PythonOperator(
                    task_id=safe_name(destination.id),
                    python_callable=deliver_run,
                    op_kwargs={"pipeline_id": pipeline.id, "destination": destination.id},
                    execution_timeout=TIMEOUT,
                )
        plan >> group
    return dag


def replay_timetable(interval: str) -> ReplayTimetable | ReplayDeltaTimetable:
    """Returns the timetable of a `replay-interval`. Raises ConfigError if that is not valid."""
    when = parse_schedule(interval)
    return ReplayTimetable(when.cron) if when.cron else ReplayDeltaTimetable(timedelta(seconds=when.seconds))


def prepare_run(
    *, pipeline_id: str, params: Mapping[str, Any], run_id: str, ti: Any, dag_run: Any, **_: Any
) -> dict[str, Any]:
    """Reads the records and returns the counts of those read and chosen. Announces the interval, so that later ones
    wait for it. With `dry-run` also returns what `would` be sent, per destination; nothing is kept then."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.replay.deliver import announced
    from conduit_tasks.replay.interval import ask
    from conduit_tasks.replay.prepare import prepare
    from conduit_tasks.replay.run import look

    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        wanted = ask(context.pipeline, *_interval(params, dag_run), params["destinations"], params["what"])
        if params.get("dry-run"):
            made, would = look(context, wanted)
            return {**made.counts, "would": would}
        with announced(context, wanted, wanted.destinations, run_id, BETWEEN):
            made = prepare(context, wanted, run_id, generation=_generation(ti), wait=WAIT)
    log.info("%s", made.counts)
    return made.counts


def deliver_run(
    *,
    pipeline_id: str,
    destination: str,
    params: Mapping[str, Any],
    run_id: str,
    ti: Any,
    dag_run: Any,
    **_: Any,
) -> dict[str, Any]:
    """Delivers to one destination and returns the outcome. A task that succeeded and was cleared sends everything
    again; one that failed goes on."""
    from dataclasses import asdict

    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.replay.deliver import deliver_replay
    from conduit_tasks.replay.interval import ask
    from conduit_tasks.replay.prepare import prepare

    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        wanted = ask(context.pipeline, *_interval(params, dag_run), params["destinations"], params["what"])
        if params.get("dry-run"):
            raise AirflowSkipException("a dry run sends nothing")
        if destination not in wanted.destinations:
            raise AirflowSkipException(f"{destination} is not among the destinations chosen for this run")
        made = prepare(context, wanted, run_id, generation=None, wait=WAIT)
        outcome = deliver_replay(
            context,
            wanted,
            made,
            destination,
            run_id,
            generation=_generation(ti),
            wait=WAIT,
            turn_wait=TIMEOUT.total_seconds(),
        )
    if outcome.dead:
        log.warning("%d records are dead letters now", outcome.dead)
    return asdict(outcome)


def _generation(ti: Any) -> str:
    """Returns the generation of a task's work. Clearing a task raises `max_tries`, a retry does not, and two copies of
    one try have the same."""
    return str(ti.max_tries)


def _interval(params: Mapping[str, Any], dag_run: Any) -> tuple[str, str]:
    given = params.get("from"), params.get("to")
    if all(given):
        return str(given[0]), str(given[1])
    if any(given):
        raise AirflowFailException("give both `from` and `to`, or neither")
    # A run triggered by hand has an interval too, but nobody chose it.
    if str(getattr(dag_run.run_type, "value", dag_run.run_type)) != "backfill":
        raise AirflowFailException("give `from` and `to`, or start a backfill, whose runs have an interval")
    return dag_run.data_interval_start.isoformat(), dag_run.data_interval_end.isoformat()


def _params(pipeline: Pipeline) -> dict[str, Param]:
    return {
        "destinations": destinations_param(pipeline, "Only to these; none chosen = all."),
        "what": Param(
            "missing",
            type="string",
            enum=["missing", "failed", "all"],
            title="What",
            description="What a destination never got; its dead letters; or everything in the interval.",
        ),
        "from": Param(
            None,
            type=["null", "string"],
            title="From",
            description="Event time; a backfill's own interval where empty.",
        ),
        "to": Param(
            None, type=["null", "string"], title="To", description="Up to this event time, which is not inside."
        ),
        "dry-run": Param(False, type="boolean", title="Dry run", description="Only count what would go."),
    }
