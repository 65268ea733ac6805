"""The task in Airflow that holds a lease, by what the lease says of its owner."""

from __future__ import annotations

import re

from conduit_tasks.pipeline.names import dag_id, task_id
from conduit_tasks.topology import Node

_RUN = re.compile(r"[A-Za-z0-9_.~:+-]+")
"""Ids of runs, as Airflow takes them."""
_TASKS = frozenset({"sources", "processors", "destinations", "acks"})
"""Kinds of nodes that are a task of their own."""

TASK = ("dag_id", "run_id", "task_id")
Task = dict[str, str | None]
"""`TASK`; each None if the owner does not tell it."""


def task_of(pipeline: str, node: str, owner: str) -> Task:
    """Returns the task of an owner (`micro_batch.context.owner_of`). A run of another DAG than the pipeline's own (to
    send again, or one that is written by hand) does not tell the task; what is no run of Airflow tells nothing."""
    run = owner.rpartition("@")[0]
    dag, _, id = run.rpartition("/")
    if not _RUN.fullmatch(id):
        return dict.fromkeys(TASK)
    task = task_id(node) if not dag and Node(node).kind in _TASKS else None
    return {"dag_id": dag or dag_id(pipeline), "run_id": id, "task_id": task}
