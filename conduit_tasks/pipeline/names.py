"""Names of pipelines and nodes: what an id is made of, and the safe names of their DAGs and tasks in Airflow; the
broker keeps the original."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from conduit_tasks.topology import Node

ID_PATTERN = r"[A-Za-z0-9_:.-]{1,128}"
"""Conduit's pattern of ids."""
ID_LETTERS = "use 1 to 128 of the characters A-Z a-z 0-9 _ : . -"
"""Characters of an id, in words."""
MAX_LENGTH = 250
"""Airflow's limit for `dag_id` and `task_id`."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
AFTER = "conduit__after_"
"""Prefix of the ids of runs that follow another run at once."""
RESEND_SUFFIX = ".resend"
EARLIER_SUFFIX = ".replay"
"""Suffix of the DAG that replayed intervals in earlier versions: Airflow still knows its runs."""


def is_id(text: str) -> bool:
    """Tells whether a pipeline, connector or processor can have this id."""
    return re.fullmatch(ID_PATTERN, text) is not None


def safe_name(id: str, limit: int = MAX_LENGTH) -> str:
    """Returns `id` itself if Airflow accepts it; otherwise other characters become `_` and a short hash of `id` is
    added, so that two different ids never share a name."""
    safe = _UNSAFE.sub("_", id)
    if safe == id and len(id) <= limit:
        return id
    digest = hashlib.blake2b(id.encode(), digest_size=4).hexdigest()
    return f"{safe[: limit - len(digest) - 1]}-{digest}"


def dag_id(pipeline: str) -> str:
    """Returns the id of a pipeline's DAG; leaves room for the suffix of its other DAG."""
    return safe_name(pipeline, MAX_LENGTH - len(RESEND_SUFFIX))


def resend_dag_id(pipeline: str) -> str:
    """Returns the id of the DAG that sends dead letters or intervals of a pipeline again."""
    return dag_id(pipeline) + RESEND_SUFFIX


def earlier_dag_id(pipeline: str) -> str:
    """Returns the id that the DAG for replays of a pipeline had in earlier versions."""
    return dag_id(pipeline) + EARLIER_SUFFIX


def names_of(dag: str) -> Callable[[str], bool]:
    """Returns a function that tells, for a pipeline's id, whether one of its DAGs has the name `dag`."""
    mains = {dag, dag.removesuffix(RESEND_SUFFIX)}
    return lambda pipeline: dag_id(pipeline) in mains


def task_id(node: str) -> str:
    """Returns the task id of a node (`sources.<id>`, `destinations.<id>`, `acks.<source>`, `processors`, …): the group
    is kept, the id after it made safe."""
    group, id = Node(node).kind, Node(node).id
    return f"{group}.{safe_name(id, MAX_LENGTH - len(group) - 1)}" if id else safe_name(node)
