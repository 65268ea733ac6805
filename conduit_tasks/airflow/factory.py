"""One Airflow DAG per pipeline, in the pipeline's own shape: its tasks, their order, retries, pool and assets, and who
goes first if slots are scarce (docs/architecture.md, "One run").

    plan → sources.* → fan_in → processors → fan_out → destinations.* → acks.* → end

The nodes work side by side: besides those edges there is one from `plan` to each node, and each node starts once `plan`
has found work. The state is in the broker, a run only starts the work: so a failed run leaves nothing to repair, and
acks run whatever happened before them. If slots are scarce, the first nodes of the graph get them first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetAlias, Param, TaskGroup, chain

from conduit_tasks.airflow import tasks
from conduit_tasks.airflow.asset_steps import AssetStepOperator, PlanOperator, alias_of
from conduit_tasks.airflow.defaults import RETRIES, RETRY_DELAY, destinations_param
from conduit_tasks.airflow.failing import watch
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.airflow.resend import build_resend_dag
from conduit_tasks.airflow.schedule import drain_limit, schedule_of
from conduit_tasks.pipeline.assets import inlets, outlets
from conduit_tasks.pipeline.explain import explain_text, mermaid
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.pipeline.names import dag_id, names_of, resend_dag_id, safe_name
from conduit_tasks.pipeline.schedule import IDLE, is_continuous
from conduit_tasks.settings import settings
from conduit_tasks.topology import Destination, Node, Pipeline, Source

log = logging.getLogger(__name__)

START = datetime(2024, 1, 1, tzinfo=UTC)
SUBMIT_TIMEOUT = timedelta(hours=1)
"""Time past the longest that a run lasts. A standalone driver whose master never comes back would otherwise hang for
ever."""
POOL_VARIABLE = "CONDUIT_SPARK_POOL"
"""Environment variable with the pool that bounds the Spark drivers that run at once; the embedded stack creates a pool
and sets it."""
FIRST = {"sources": 4, "processors": 3, "destinations": 2, "acks": 1}
"""Priority of each kind of node (`priority_weight`) for slots: a node must not wait for one that cannot start."""
SQL_PLUGINS = frozenset({"sql", "spark"})
"""Plugins that work in the JVM, for which the second compiler pays off."""


def load_dags(only: str | None = None) -> list[DAG]:
    """Builds the DAG and the `.resend` of every pipeline that loads, or only the DAG named `only`.

    A broken pipeline is left out here, so that the others stay; `dags/conduit_errors.py` reports it.
    """
    kinds = {dag_id: build_dag, resend_dag_id: build_resend_dag}
    wanted = None if only is None else names_of(only)
    found = load_folder(settings().path(settings().pipelines), wanted=wanted).pipelines
    return [build(p) for p in found for name, build in kinds.items() if only is None or name(p.id) == only]


def build_dag(pipeline: Pipeline) -> DAG:
    """Builds the live DAG of one pipeline. None of its tasks reads the data interval."""
    with DAG(
        dag_id(pipeline.id),
        description=pipeline.description or pipeline.name or f"Conduit pipeline {pipeline.id}",
        schedule=schedule_of(pipeline),
        start_date=START,
        catchup=False,
        # One run drains everything, and its nodes work side by side, so a second run at once would gain nothing. A
        # continuous run goes on until the next one is ready to take over.
        max_active_runs=2 if is_continuous(pipeline) else 1,
        is_paused_upon_creation=pipeline.status != "running",
        default_args={"owner": "conduit", "retries": RETRIES, "retry_delay": RETRY_DELAY},
        params=_params(pipeline),
        doc_md=_doc(pipeline),
        tags=["conduit", *sorted({s.plugin for s in pipeline.sources} | {d.plugin for d in pipeline.destinations})],
    ) as dag:
        add_tasks(pipeline)
    return dag


def add_tasks(pipeline: Pipeline, *, among_others: bool = False) -> None:
    """Adds the tasks of a run to the DAG, or group, that is being made. `among_others`: there may be tasks of the
    user's after them, which go on if there was nothing to do."""
    plan = PlanOperator(
        task_id="plan",
        python_callable=tasks.plan,
        op_kwargs={"pipeline_id": pipeline.id, "drain_limit": drain_limit(pipeline)},
        ignore_downstream_trigger_rules=not among_others,
    )
    watch(plan, pipeline.id, "plan")
    sources = _group("sources", pipeline.sources, pipeline)
    fan_in = EmptyOperator(task_id="fan_in", trigger_rule="none_failed")
    fan_out = EmptyOperator(task_id="fan_out", trigger_rule="none_failed")
    destinations = _group("destinations", pipeline.destinations, pipeline)
    acks = _acks(pipeline, plan.task_id)
    end = EmptyOperator(task_id="end", trigger_rule="none_failed")
    chain(plan, sources, fan_in)
    if pipeline.processors:
        processors = _submit(pipeline, "processors", "processors", [p.plugin for p in pipeline.processors])
        chain(fan_in, processors, fan_out)
        chain(plan, processors)
    else:
        chain(fan_in, fan_out)
    chain(fan_out, destinations, acks, end)
    chain(plan, [destinations, acks])
    # Airflow judges a run by its leaves, and nodes that work side by side succeed whatever the others do.
    chain([fan_out, destinations], end)
    if any("asset" in d.on_delivered for d in pipeline.destinations):
        chain(_steps(pipeline, destinations), end)


def _group(name: str, connectors: Iterable[Source | Destination], pipeline: Pipeline) -> TaskGroup:
    with TaskGroup(name) as group:
        for each in connectors:
            plugins = [each.plugin, *(p.plugin for p in each.processors)]
            if isinstance(each, Source):
                _submit(pipeline, safe_name(each.id), each.node, plugins, inlets=_assets(inlets(each)))
            else:
                _submit(pipeline, safe_name(each.id), each.node, plugins, outlets=_assets(outlets(each)))
    return group


def _assets(uris: Iterable[str]) -> list[Asset]:
    """Returns the assets; one whose URI the provider of its scheme does not take is left out, with a warning: nothing
    of a delivery depends on it."""
    found = []
    for uri in uris:
        try:
            found.append(Asset(uri))
        except ValueError as error:
            log.warning("%s is no asset of Airflow's: %s", uri, error)
    return found


def _submit(pipeline: Pipeline, task_id: str, node: str, plugins: Iterable[str], **more: Any) -> ConduitSubmitOperator:
    limit = drain_limit(pipeline)
    longest = max(limit, IDLE) if is_continuous(pipeline) else limit
    task = ConduitSubmitOperator(
        task_id=task_id,
        pipeline_id=pipeline.id,
        node=node,
        drain_limit=limit,
        quick_jit=SQL_PLUGINS.isdisjoint(plugins),
        trigger_rule="one_success",
        pool=os.environ.get(POOL_VARIABLE, "default_pool"),
        priority_weight=FIRST[Node(node).kind],
        weight_rule="absolute",
        execution_timeout=SUBMIT_TIMEOUT + timedelta(seconds=longest),
        **more,
    )
    watch(task, pipeline.id, node)
    return task


def _acks(pipeline: Pipeline, plan: str) -> TaskGroup:
    with TaskGroup("acks") as group:
        for n, source in enumerate(pipeline.sources):
            ack = PythonOperator(
                task_id=safe_name(source.id),
                python_callable=tasks.ack,
                op_kwargs={
                    **{"pipeline_id": pipeline.id, "source_id": source.id, "follows": n == 0},
                    **({} if plan == "plan" else {"plan_id": plan}),
                },
                # Also if `plan` has failed: earlier deliveries can still be acked.
                trigger_rule="one_done",
                priority_weight=FIRST["acks"],
                weight_rule="absolute",
            )
            watch(ack, pipeline.id, Node.ack(source.id))
    return group


def _steps(pipeline: Pipeline, destinations: TaskGroup) -> TaskGroup:
    """Adds a task after each destination of whose micro-batches events of an asset are made."""
    with TaskGroup("steps") as group:
        for each in pipeline.destinations:
            if (asset := each.on_delivered.get("asset")) is None:
                continue
            name, alias = safe_name(each.id), AssetAlias(alias_of(pipeline.id, each.id))
            step = AssetStepOperator(
                task_id=name,
                pipeline_id=pipeline.id,
                destination=each.id,
                asset=asset,
                # Airflow knows by these what the task makes; when it has run, its events come by the alias alone.
                outlets=[*_assets([asset]), alias],
                # However the destination has ended, what it confirmed before is told.
                trigger_rule="all_done",
                priority_weight=FIRST["acks"],
                weight_rule="absolute",
            )
            watch(step, pipeline.id, f"steps.{each.id}")
            chain(destinations.get_child_by_label(name), step)
    return group


def _params(pipeline: Pipeline) -> dict[str, Param]:
    meaning = "Deliver only to these in this run; none chosen = all. The others go on with the next run."
    return {
        "destinations": destinations_param(pipeline, meaning),
        "max-records": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Most records",
            description="At most this many new records in this run; 0: it only delivers what has been read.",
        ),
    }


def _doc(pipeline: Pipeline) -> str:
    head = f"{pipeline.description.strip()}\n\n" if pipeline.description else ""
    return f"{head}```mermaid\n{mermaid(pipeline)}\n```\n\n```text\n{explain_text(pipeline, connectors=False)}\n```\n"
