"""Pipelines of a folder that exclude each other: with the same id, with DAGs of the same name, or with connectors that
share a resource which only one may own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from conduit_tasks.pipeline.findings import Finding
from conduit_tasks.pipeline.names import dag_id, resend_dag_id
from conduit_tasks.topology import Destination, Pipeline, Source


class Declared(NamedTuple):
    """A pipeline as written in its file, whether or not it can be loaded."""

    id: str
    file: str
    line: int


def without_clashes(
    pipelines: Sequence[Pipeline], declared: Sequence[Declared]
) -> tuple[list[Pipeline], list[Finding]]:
    """Returns the pipelines without a clash of ids or DAG names, and findings for the others. Of several pipelines with
    one id none is kept, as in Conduit: which one is meant is unknown, and a broken one may be repaired later."""
    by_id: dict[str, list[Declared]] = {}
    for one in declared:
        by_id.setdefault(one.id, []).append(one)
    found = []
    for one in declared:
        if twins := [other for other in by_id[one.id] if other is not one]:
            where = f"{twins[0].file}:{twins[0].line}"
            message = f"the pipeline id '{one.id}' is used twice, also in {where}; neither is loaded"
            found.append(_clash(one, "E105", message))
    others = {resend_dag_id(p.id): p.id for p in pipelines}
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


def without_shared(pipelines: Sequence[Pipeline], *, plugins: bool) -> tuple[list[Pipeline], list[Finding]]:
    """Returns the pipelines whose connectors own their resources alone, and findings for the others.

    With `plugins` all connectors are loaded; otherwise only connectors whose pipeline id and connector id give the same
    name when joined by a dot (`a.b`, `c` and `a`, `b.c`).
    """
    joined = Counter(f"{p.id}.{c.id}" for p in pipelines for c in _connectors(p))
    owners: dict[str, list[tuple[Pipeline, str]]] = {}
    for pipeline in pipelines:
        for connector in _connectors(pipeline):
            if plugins or joined[f"{pipeline.id}.{connector.id}"] > 1:
                for thing in _owned(pipeline, connector):
                    owners.setdefault(thing, []).append((pipeline, connector.id))
    found, refused = [], set()
    for thing, of in owners.items():
        for pipeline, id in of if len(of) > 1 else ():
            others = " and ".join(f"{o} of {p.id}" for p, o in of if (p.id, o) != (pipeline.id, id))
            message = f"{id} of {pipeline.id} would share {thing} with {others}"
            hint = "give one of them another id, or name another one in its settings"
            found.append(_clash(Declared(pipeline.id, pipeline.file, pipeline.line), "E108", message, hint))
            refused.add(pipeline.id)
    return [p for p in pipelines if p.id not in refused], found


def _connectors(pipeline: Pipeline) -> list[Source | Destination]:
    return [*pipeline.sources, *pipeline.destinations]


def _owned(pipeline: Pipeline, connector: Source | Destination) -> Iterator[str]:
    from conduit_tasks.connectors.base import Owner
    from conduit_tasks.connectors.connection import made, named
    from conduit_tasks.connectors.registry import destination_class, source_class
    from conduit_tasks.errors import ConduitError

    try:
        cls: Any = (source_class if isinstance(connector, Source) else destination_class)(connector.plugin)
        if named(cls.spec, connector.settings) and cls.owned is Owner.owned:
            return  # Airflow is not asked for nothing
        found = made(cls, connector.settings)
    except ConduitError:
        return  # reported as a finding of its own
    found.pipeline, found.connector = pipeline.id, connector.id
    yield from dict.fromkeys(found.owned())


def _clash(one: Declared, code: str, message: str, hint: str = "give each pipeline an id of its own") -> Finding:
    return Finding(one.file, one.line, 1, code, "error", message, hint, one.id)
