"""Explanation of a pipeline file (SEMANTICS X8): nodes, edges with their guarantees, limits and windows; as text, as a
dictionary, and as a picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from conduit_tasks.pipeline.guarantees import destination_edge, nack_window, source_edge, writes
from conduit_tasks.pipeline.names import dag_id, resend_dag_id, safe_name
from conduit_tasks.pipeline.parallel import one_task
from conduit_tasks.record.units import format_duration, format_size
from conduit_tasks.topology import Destination, Limits, Pipeline, Processor


def explain(pipeline: Pipeline, *, connectors: bool = True) -> dict[str, Any]:
    """Returns everything that `conduit explain` prints, as JSON types. Settings are left out: they may hold secrets.

    `connectors=False` loads no connector's class (for DAG parsing); it is then unknown how a destination writes.
    """
    classes = {d.id: _connector(d.plugin) if connectors else None for d in pipeline.destinations}
    return {
        "pipeline": pipeline.id,
        "dag": dag_id(pipeline.id),
        "resend_dag": resend_dag_id(pipeline.id),
        "replay_dag": resend_dag_id(pipeline.id),  # its earlier name
        "status": pipeline.status,
        "schedule": schedule_text(pipeline),
        "nodes": _nodes(pipeline, classes),
        "edges": [
            *(asdict(source_edge(s, _source(s.plugin) if connectors else None)) for s in pipeline.sources),
            *(asdict(destination_edge(pipeline, d, classes[d.id])) for d in pipeline.destinations),
        ],
        "limits": {
            "micro_batch": limits_text(pipeline.micro_batch),
            "lag_budget": limits_text(pipeline.lag_budget) if pipeline.lag_budget else "one micro-batch",
            "isolate": pipeline.isolate,
            "spool_retention": format_duration(pipeline.spool_retention),
        },
        "windows": {
            "before the fan-out": nack_window(pipeline.dead_letters),
            **{d.node: nack_window(d.dead_letters, _tasks(d, classes[d.id])) for d in pipeline.destinations},
        },
        "notes": _notes(pipeline),
    }


def _tasks(destination: Destination, connector: type | None) -> int:
    return 1 if one_task(destination, connector) else destination.delivery.most_tasks


def explain_text(pipeline: Pipeline, *, connectors: bool = True) -> str:
    """Returns the content of `explain` as text for people."""
    about = explain(pipeline, connectors=connectors)
    lines = [
        f"pipeline {pipeline.id} ({pipeline.status}), schedule {about['schedule']}, DAG {about['dag']}",
        "",
        "Nodes",
    ]
    lines += [f"  {node['node']}  {node['does']}" for node in about["nodes"]]
    lines += ["", "Edges"]
    for edge in about["edges"]:
        lines.append(f"  {edge['source']} → {edge['target']}")
        lines += [
            f"    {label:<14} {edge[key]}"
            for label, key in (
                ("guarantee", "guarantee"),
                ("order", "order"),
                ("acked" if edge["target"] == "pipeline" else "pipe", "acked"),
                ("duplicates", "duplicates"),
                ("dropping them", "dedupe"),
                ("failures", "failures"),
            )
        ]
        lines += [f"    {'not tolerated':<14} {text}" for text in edge["not_tolerated"]]
    limits = about["limits"]
    lines += [
        "",
        "Limits",
        f"  one micro-batch holds at most {limits['micro_batch']}",
        f"  read ahead of the slowest destination: at most {limits['lag_budget']}",
        f"  delivered micro-batches are kept for {limits['spool_retention']}",
        "",
        "Failed records",
    ]
    lines += [f"  {where}: {text}" for where, text in about["windows"].items()]
    if about["notes"]:
        lines += ["", "Notes", *(f"  {note}" for note in about["notes"])]
    return "\n".join(lines)


def mermaid(pipeline: Pipeline) -> str:
    """Returns the pipeline as a mermaid flowchart: sources → processors → destinations, fan-in and fan-out implied."""
    lines = ["flowchart LR"]
    for n, source in enumerate(pipeline.sources):
        lines.append(f"  s{n}[{_label(source.id, source.plugin, source.processors)}]")
    for n, destination in enumerate(pipeline.destinations):
        lines.append(f"  d{n}[{_label(destination.id, destination.plugin, destination.processors)}]")
    hub = "p"
    if pipeline.processors:
        lines.append(f"  p[{_quoted(' → '.join(processor.id for processor in pipeline.processors))}]")
    else:
        lines.append("  p(( ))")
    lines += [f"  s{n} --> {hub}" for n in range(len(pipeline.sources))]
    for n, destination in enumerate(pipeline.destinations):
        wanted = f"|{_quoted('filtered')}|" if destination.filters else ""
        lines.append(f"  {hub} -->{wanted} d{n}")
    return "\n".join(lines)


def schedule_text(pipeline: Pipeline) -> str:
    """Returns `@daily, and woken by web (looked at every 2s, at most every 10s)`."""
    wake = pipeline.wake
    if wake is None:
        return pipeline.schedule
    by = ", ".join(wake.sources) or "every source that can be looked at"
    often = f"looked at every {format_duration(wake.look)}, at most every {format_duration(wake.pause)}"
    return f"{pipeline.schedule}, and woken by {by} ({often})"


def limits_text(limits: Limits) -> str:
    """Returns `500,000 records, 256MiB`."""
    parts = [f"{limits.records:,} records"] if limits.records else []
    parts += [format_size(limits.bytes)] if limits.bytes else []
    parts += [f"{format_duration(limits.age)} of age"] if limits.age else []
    return ", ".join(parts) or "anything"


def _nodes(pipeline: Pipeline, classes: dict[str, type | None]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = [
        {"node": s.node, "plugin": s.plugin, "does": f"reads {s.plugin}{_chain(s.processors)}"}
        for s in pipeline.sources
    ]
    if pipeline.processors:
        does = _chain(pipeline.processors).removeprefix(", then ")
        nodes.append({"node": "processors", "plugin": None, "does": does})
    for d in pipeline.destinations:
        wants = f", records that match {len(d.filters)} filter(s)" if d.filters else ", everything"
        how = {"batch": " in batches", "record": " one by one"}.get(writes(classes[d.id]), "")
        nodes.append(
            {"node": d.node, "plugin": d.plugin, "does": f"writes {d.plugin}{how}{wants}{_chain(d.processors)}"}
        )
    return nodes


def _connector(plugin: str) -> type | None:
    from conduit_tasks.connectors import registry
    from conduit_tasks.errors import ConfigError

    try:
        return registry.destination_class(plugin)
    except ConfigError:
        return None


def _source(plugin: str) -> type | None:
    from conduit_tasks.connectors import registry
    from conduit_tasks.errors import ConfigError

    try:
        return registry.source_class(plugin)
    except ConfigError:
        return None


def _chain(processors: tuple[Processor, ...]) -> str:
    if not processors:
        return ""
    return ", then " + " → ".join(f"{p.id} ({p.plugin}{', conditional' if p.condition else ''})" for p in processors)


def _notes(pipeline: Pipeline) -> list[str]:
    notes = []
    if pipeline.lag_budget and _more_than_one(pipeline.lag_budget, pipeline.micro_batch):
        notes.append(
            "the lag budget is larger than one micro-batch: several may be in flight at once (gives up B2's one)"
        )
    if pipeline.isolate:
        notes.append(
            "isolate: a destination that fails does not stop the others; sources are acked at the lowest cursor"
        )
    elif len(pipeline.destinations) > 1:
        notes.append("the slowest destination sets the speed of all (C13); isolate: true and a lag budget change that")
    if safe_name(pipeline.id) != pipeline.id:
        notes.append(f"Airflow calls it {dag_id(pipeline.id)}: the id has characters that Airflow does not take")
    return notes


def _more_than_one(budget: Limits, batch: Limits) -> bool:
    """Returns whether the budget leaves room for a second micro-batch: none of its bounds is within one micro-batch."""
    within_records = budget.records is not None and batch.records is not None and budget.records <= batch.records
    within_bytes = budget.bytes is not None and batch.bytes is not None and budget.bytes <= batch.bytes
    return not (within_records or within_bytes)


def _label(id: str, plugin: str, processors: tuple[Processor, ...]) -> str:
    steps = "".join(f"<br/>{p.id}" for p in processors)
    return _quoted(f"{id}<br/><i>{plugin}</i>{steps}")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
