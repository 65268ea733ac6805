"""Pipelines of a folder that cannot be there together: of the same id, or with DAGs of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from conduit_tasks.pipeline.findings import Finding
from conduit_tasks.pipeline.names import dag_id, redrive_dag_id, replay_dag_id
from conduit_tasks.pipeline.topology import Pipeline


class Declared(NamedTuple):
    """A pipeline as it is written, whether or not it can be loaded."""

    id: str
    file: str
    line: int


def without_clashes(
    pipelines: Sequence[Pipeline], declared: Sequence[Declared]
) -> tuple[list[Pipeline], list[Finding]]:
    """The pipelines that may stay, and what is wrong with the others. Of the same id none stays: which one is meant is
    unknown, as in Conduit, and one that is broken today may be mended tomorrow."""
    by_id: dict[str, list[Declared]] = {}
    for one in declared:
        by_id.setdefault(one.id, []).append(one)
    found = []
    for one in declared:
        if twins := [other for other in by_id[one.id] if other is not one]:
            where = f"{twins[0].file}:{twins[0].line}"
            message = f"the pipeline id '{one.id}' is used twice, also in {where}; neither is loaded"
            found.append(_clash(one, "E105", message))
    others = {name(p.id): p.id for p in pipelines for name in (replay_dag_id, redrive_dag_id)}
    kept = []
    for pipeline in pipelines:
        if len(by_id.get(pipeline.id, ())) > 1:
            continue
        if other := others.get(dag_id(pipeline.id)):
            message = f"the pipeline '{pipeline.id}' would have the name of a DAG of '{other}'"
            found.append(_clash(Declared(pipeline.id, pipeline.file, pipeline.line), "E106", message))
        else:
            kept.append(pipeline)
    return kept, found


def _clash(one: Declared, code: str, message: str) -> Finding:
    hint = "give each pipeline an id of its own"
    return Finding(one.file, one.line, 1, code, "error", message, hint, one.id)
