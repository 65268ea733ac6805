"""`<pipeline>.redrive`: sends dead letters again, from Airflow's trigger form (SEMANTICS X2); nothing schedules it.

One Python task, no Spark: `conduit dead-letters redrive` on Airflow's workers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException

from conduit_tasks.airflow.factory import RETRIES, RETRY_DELAY, START
from conduit_tasks.airflow.tasks import fail_without_retry
from conduit_tasks.pipeline.names import redrive_dag_id
from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

WAIT = 120.0
"""Seconds to wait for a live delivery to hand over; Airflow's retries wait on."""
TIMEOUT = timedelta(hours=6)


def build_redrive_dag(pipeline: Pipeline) -> DAG:
    """Builds the DAG: one task, whose parameters are the filters of `conduit dead-letters`."""
    with DAG(
        redrive_dag_id(pipeline.id),
        description=f"Sends dead letters of {pipeline.id} again",
        schedule=None,
        start_date=START,
        catchup=False,
        # Leases keep runs apart: runs to several destinations go on at once, two runs to one destination take turns.
        max_active_runs=4,
        is_paused_upon_creation=False,
        default_args={"owner": "conduit", "retries": RETRIES, "retry_delay": RETRY_DELAY},
        params=_params(pipeline),
        doc_md=__doc__,
        tags=["conduit", "redrive"],
    ) as dag:
        PythonOperator(
            task_id="redrive",
            python_callable=redrive,
            op_kwargs={"pipeline_id": pipeline.id},
            execution_timeout=TIMEOUT,
        )
    return dag


def redrive(
    pipeline_id: str, params: Mapping[str, Any], run_id: str, ti: Any, dag_run: Any, **_: Any
) -> list[dict[str, Any]]:
    """Redrives and returns the outcome per destination; with `dry-run` only the counts of what would be sent. Both are
    the task's XCom.

    Fails without retry if a setting is wrong, the pipeline is stopped or a record is a dead letter again; with
    Airflow's retry if the destination is down or a delivery does not hand over.
    """
    from dataclasses import asdict

    from conduit_tasks.dead_letters.select import selection
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.redrive import redrive as sending

    by = getattr(dag_run, "triggering_user_name", None) or "airflow"
    with fail_without_retry(), opened(pipeline_id, run_id) as context:
        chosen = selection(
            destination=params.get("destination"),
            classes=params.get("classes"),
            since=params.get("since"),
            until=params.get("until"),
            keys=params.get("keys"),
            micro_batches=params.get("micro-batches"),
            ids=params.get("ids"),
        )
        shares, said = sending.shares(context, chosen)
        for sentence in said:
            log.warning("%s", sentence)
        for share in shares:
            log.info("%s: %d dead letters, %d parked records", share.destination, len(share.rows), share.waiting)
        if params.get("dry-run"):
            return [{"destination": s.destination, "letters": len(s.rows), "parked": s.waiting} for s in shares]
        outcomes = sending.redrive(
            context, chosen, f"{by} ({run_id})", wait=WAIT, progress=lambda outcome: log.info("%s", outcome)
        )
    result = [asdict(outcome) for outcome in outcomes]
    if again := sum(outcome.again for outcome in outcomes):
        ti.xcom_push("return_value", result)
        raise AirflowFailException(f"{again:,} of them failed again; look at the new dead letters")
    return result


def _params(pipeline: Pipeline) -> dict[str, Param]:
    return {
        "destination": Param(
            None,
            type=["null", "string"],
            enum=[None, *(d.id for d in pipeline.destinations), "_pipeline"],
            title="Destination",
            description="`_pipeline`: what failed before the fan-out.",
        ),
        "classes": Param([], type="array", items={"type": "string"}, title="Error classes", examples=["http 400"]),
        "since": Param(
            None, type=["null", "string"], title="Since", description="A date and time, or so long ago (2h, 1d)."
        ),
        "until": Param(None, type=["null", "string"], title="Until", description="Only from before then."),
        "keys": Param([], type="array", items={"type": "string"}, title="Keys", description="Text, or JSON."),
        "micro-batches": Param([], type="array", items={"type": "integer"}, title="Micro-batches"),
        "ids": Param([], type="array", items={"type": "string"}, title="Ids of records"),
        "dry-run": Param(False, type="boolean", title="Dry run", description="Only say what would go."),
    }
