"""The DAG `<pipeline>.resend`: a run of it redrives dead letters or replays an interval of event times (SEMANTICS X2,
X3). A trigger or a backfill starts it; nothing schedules it.

- A trigger without an interval redrives dead letters: `conduit dead-letters redrive` on Airflow's workers.
- A backfill, or a trigger with `from` and `to`, replays an interval of event times: `conduit replay`.

`plan` says which of the two a run is, and reads and fixes the records of an interval. Either `redrive` follows, or one
task per destination that is to get the interval. All are Python tasks, without Spark's executors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.branch import BranchMixIn
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, TaskGroup

from conduit_tasks.airflow.compat import AirflowFailException, AirflowSkipException
from conduit_tasks.airflow.defaults import RETRIES, RETRY_DELAY, destinations_param
from conduit_tasks.airflow.failing import watch
from conduit_tasks.airflow.tasks import fail_without_retry
from conduit_tasks.airflow.timetable import ReplayDeltaTimetable, ReplayTimetable
from conduit_tasks.pipeline.names import resend_dag_id, safe_name
from conduit_tasks.pipeline.schedule import parse_schedule
from conduit_tasks.topology import Node, Pipeline

log = logging.getLogger(__name__)

DEAD_LETTERS = "dead-letters"
"""`what` of a run that redrives; the others are those of a replay."""
FILTERS = ("classes", "since", "until", "keys", "micro-batches", "ids", "issues")
"""Parameters that choose dead letters, as the options of `conduit dead-letters` do."""
REDRIVE_WAIT, REPLAY_WAIT = 120.0, 600.0
"""Seconds to wait for a live delivery to hand over; Airflow's retries wait on."""
REDRIVE_TIMEOUT, TIMEOUT = timedelta(hours=6), timedelta(hours=12)
"""Limits of a task. A replay waits this long for the runs of earlier intervals, as long as they are alive."""
BETWEEN = 600.0
"""Seconds for which a replay keeps its turn while its destinations wait for a worker after `plan`."""


class PlanOperator(PythonOperator, BranchMixIn):
    """Task whose function returns (the tasks that follow, its result); the other tasks after it are skipped."""

    inherits_from_skipmixin = True

    def execute(self, context: Any) -> Any:
        follow, result = super().execute(context)
        # Skipping the others ends the task, by an exception, before Airflow has stored what it returns.
        context["ti"].xcom_push("return_value", result)
        self.do_branch(context, follow)
        return result


def build_resend_dag(pipeline: Pipeline) -> DAG:
    """Builds the DAG: `plan`, then `redrive`, or the destinations side by side."""
    about = {"pipeline_id": pipeline.id}
    with DAG(
        resend_dag_id(pipeline.id),
        description=f"Sends records of {pipeline.id} again: dead letters, or an interval",
        schedule=replay_timetable(pipeline.replay_interval),
        start_date=None,
        catchup=False,
        # Leases and turns keep runs apart: runs to several destinations go on at once, two runs to one destination take
        # turns. A replay that waits for its turn must not keep redrives from starting.
        max_active_runs=8,
        is_paused_upon_creation=False,
        default_args={"owner": "conduit", "retries": RETRIES, "retry_delay": RETRY_DELAY},
        params=_params(pipeline),
        doc_md=__doc__,
        tags=["conduit", "resend"],
    ) as dag:
        plan = PlanOperator(task_id="plan", python_callable=plan_run, op_kwargs=about, execution_timeout=TIMEOUT)
        letters = PythonOperator(
            task_id="redrive", python_callable=redrive_run, op_kwargs=about, execution_timeout=REDRIVE_TIMEOUT
        )
        with TaskGroup("destinations") as group:
            for destination in pipeline.destinations:
                deliver = PythonOperator(
                    task_id=safe_name(destination.id),
                    python_callable=deliver_run,
                    op_kwargs={**about, "destination": destination.id},
                    execution_timeout=TIMEOUT,
                )
                watch(deliver, pipeline.id, f"resend/destinations.{destination.id}")
        watch(plan, pipeline.id, "resend/plan")
        watch(letters, pipeline.id, "resend/redrive")
        plan >> [letters, group]
    return dag


def replay_timetable(interval: str) -> ReplayTimetable | ReplayDeltaTimetable:
    """Returns the timetable of a `replay-interval`. Raises ConfigError if that is not valid."""
    when = parse_schedule(interval)
    return ReplayTimetable(when.cron) if when.cron else ReplayDeltaTimetable(timedelta(seconds=when.seconds))


def what_of(params: Mapping[str, Any], run_type: Any) -> str:
    """Returns what a run sends: `dead-letters`, or `missing`, `failed` or `all` of an interval. If its parameters do
    not say it: what is missing, if the run has an interval."""
    has_interval = params.get("from") or params.get("to") or _is_backfill(run_type)
    return params.get("what") or ("missing" if has_interval else DEAD_LETTERS)


def plan_run(
    *, pipeline_id: str, params: Mapping[str, Any], run_id: str, ti: Any, dag_run: Any, **_: Any
) -> tuple[list[str], dict[str, Any]]:
    """Returns the tasks that follow, and the counts of the records that an interval has and that were chosen; a dry run
    also says what `would` be sent, per destination, and nothing is kept. Announces the interval, so that later ones
    wait for it."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.resend.interval import ask
    from conduit_tasks.resend.prepare import prepare
    from conduit_tasks.resend.replay import announced, look

    what = what_of(params, dag_run.run_type)
    interval = _interval(params, dag_run, what)
    if interval is None:
        return ["redrive"], {"what": what}
    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        wanted = ask(context.pipeline, *interval, params["destinations"], what)
        if params.get("dry-run"):
            made, would = look(context, wanted)
            return [], {**made.counts, "would": would}
        with announced(context, wanted, wanted.destinations, run_id, BETWEEN):
            made = prepare(context, wanted, run_id, generation=_generation(ti), wait=REPLAY_WAIT)
    log.info("%s", made.counts)
    return [Node.destination(safe_name(id)) for id in wanted.destinations], made.counts


def redrive_run(
    *, pipeline_id: str, params: Mapping[str, Any], run_id: str, ti: Any, dag_run: Any, **_: Any
) -> list[dict[str, Any]]:
    """Redrives and returns the outcome per destination; with `dry-run` only the counts of what would be sent.

    Fails without retry if a setting is wrong, the pipeline is stopped or a record is a dead letter again; with
    Airflow's retry if the destination is down or a delivery does not hand over.
    """
    from dataclasses import asdict

    from conduit_tasks.dead_letters.select import selection
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.resend import redrive as sending

    by = getattr(dag_run, "triggering_user_name", None) or "airflow"
    result: list[dict[str, Any]] = []
    again = 0
    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        for destination in _destinations(params):
            filters = {name.replace("-", "_"): params.get(name) for name in FILTERS}
            chosen = selection(destination=destination, **filters)
            shares, said = sending.shares(context, chosen)
            for sentence in said:
                log.warning("%s", sentence)
            for share in shares:
                log.info(
                    "%s: %d dead letters, %d parked records", share.destination, share.letters.num_rows, share.waiting
                )
            if params.get("dry-run"):
                result += [share.as_json() for share in shares]
                continue
            outcomes = sending.redrive(
                context, chosen, f"{by} ({run_id})", wait=REDRIVE_WAIT, progress=lambda outcome: log.info("%s", outcome)
            )
            result += map(asdict, outcomes)
            again += sum(outcome.again for outcome in outcomes)
    if again:
        ti.xcom_push("return_value", result)
        raise AirflowFailException(f"{again:,} of them failed again; look at the new dead letters")
    return result


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
    """Delivers an interval to one destination and returns the outcome. A task that succeeded and was cleared sends
    everything again; one that failed goes on."""
    from dataclasses import asdict

    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.resend.interval import ask
    from conduit_tasks.resend.prepare import prepare
    from conduit_tasks.resend.replay import deliver_replay

    what = what_of(params, dag_run.run_type)
    interval = _interval(params, dag_run, what)
    if interval is None or params.get("dry-run"):
        # Only if it was started without `plan`, which skips it.
        raise AirflowSkipException("this run sends no interval")
    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        wanted = ask(context.pipeline, *interval, params["destinations"], what)
        if destination not in wanted.destinations:
            raise AirflowSkipException(f"{destination} is not among the destinations chosen for this run")
        made = prepare(context, wanted, run_id, generation=None, wait=REPLAY_WAIT)
        outcome = deliver_replay(
            context,
            wanted,
            made,
            destination,
            run_id,
            generation=_generation(ti),
            wait=REPLAY_WAIT,
            turn_wait=TIMEOUT.total_seconds(),
        )
    if outcome.dead:
        log.warning("%d records are dead letters now", outcome.dead)
    return asdict(outcome)


def _generation(ti: Any) -> str:
    """Returns the generation of a task's work. Clearing a task raises `max_tries`, a retry does not, and two copies of
    one try have the same."""
    return str(ti.max_tries)


def _interval(params: Mapping[str, Any], dag_run: Any, what: str) -> tuple[str, str] | None:
    """Returns the interval of a replay; None if the run redrives. Raises AirflowFailException if the parameters do not
    go together."""
    backfill, given = _is_backfill(dag_run.run_type), (params.get("from"), params.get("to"))
    if what == DEAD_LETTERS:
        if backfill or any(given):
            raise AirflowFailException(
                "dead letters have no interval: choose them by `since` and `until`, without `from`, `to` or a backfill"
            )
        return None
    if filters := [name for name in ("destination", *FILTERS) if params.get(name)]:
        raise AirflowFailException(f"`{filters[0]}` chooses dead letters, and this run sends an interval")
    if all(given):
        return str(given[0]), str(given[1])
    if any(given):
        raise AirflowFailException("give both `from` and `to`, or neither")
    # A run triggered by hand has an interval too, but nobody chose it.
    if not backfill:
        raise AirflowFailException("give `from` and `to`, or start a backfill, whose runs have an interval")
    return dag_run.data_interval_start.isoformat(), dag_run.data_interval_end.isoformat()


def _is_backfill(run_type: Any) -> bool:
    return str(getattr(run_type, "value", run_type)) == "backfill"


def _destinations(params: Mapping[str, Any]) -> list[str | None]:
    """Returns the destinations whose dead letters are sent; None stands for all. `destination` is what the DAG
    `<pipeline>.redrive` of earlier versions took."""
    chosen = [*(params.get("destinations") or ()), params.get("destination")]
    return list(dict.fromkeys(id for id in chosen if id)) or [None]


def _params(pipeline: Pipeline) -> dict[str, Param]:
    destinations = destinations_param(
        pipeline, "Only to these; none chosen = all. `_pipeline`: dead letters from before the fan-out.", "_pipeline"
    )
    letters: dict[str, Any] = {"section": "Dead letters"}
    interval: dict[str, Any] = {"section": "An interval"}
    text: dict[str, Any] = {"type": ["null", "string"]}
    texts: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    return {
        "what": Param(
            None,
            type=["null", "string"],
            enum=[None, DEAD_LETTERS, "missing", "failed", "all"],
            title="What",
            description="Empty: of an interval what is missing, otherwise dead letters. Of an interval: what a "
            "destination never got; its dead letters; or everything.",
        ),
        "destinations": destinations,
        "dry-run": Param(False, type="boolean", title="Dry run", description="Only count what would go."),
        "classes": Param([], **texts, **letters, title="Error classes", examples=["http 400"]),
        "since": Param(None, **text, **letters, title="Since", description="A date and time, or so long ago (2h, 1d)."),
        "until": Param(None, **text, **letters, title="Until", description="Only from before then."),
        "keys": Param([], **texts, **letters, title="Keys", description="Text, or JSON."),
        "micro-batches": Param([], type="array", items={"type": "integer"}, **letters, title="Micro-batches"),
        "ids": Param([], **texts, **letters, title="Ids of records"),
        "issues": Param([], **texts, **letters, title="Issues"),
        "from": Param(
            None, **text, **interval, title="From", description="Event time; a backfill's own interval where empty."
        ),
        "to": Param(None, **text, **interval, title="To", description="Up to this event time, which is not inside."),
    }
