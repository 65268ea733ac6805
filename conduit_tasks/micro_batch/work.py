"""What a node has to do, looked at before a JVM is started for it; cheap work is done here, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.process import NODE as PROCESSORS
from conduit_tasks.micro_batch.seal import seal_if_complete


@dataclass(frozen=True)
class WorkNeeded:
    """`submit`: a Spark application is needed. Otherwise `done` tells finished work from nothing to do."""

    submit: bool
    reason: str
    done: bool = False


def needed(pipeline_id: str, node: str, run_id: str) -> WorkNeeded:
    """Looks at the broker for `sources.<id>`, `processors` or `destinations.<id>`."""
    with opened(pipeline_id, run_id) as context:
        kind, _, name = node.partition(".")
        return _destination(context, name) if kind == "destinations" else _before_fan_out(context, node)


def _before_fan_out(context: Context, node: str) -> WorkNeeded:
    micro_batch = context.broker.unsealed()
    if micro_batch is None:
        return WorkNeeded(False, "nothing is unsealed")
    open_nodes = micro_batch.missing
    if not open_nodes:
        return WorkNeeded(False, seal_if_complete(context, micro_batch.number), done=True)
    if node not in open_nodes:
        return WorkNeeded(False, f"{node} has nothing to do in micro-batch {micro_batch.number}")
    if node == PROCESSORS and open_nodes != [PROCESSORS]:
        return WorkNeeded(False, f"waiting for {', '.join(n for n in open_nodes if n != PROCESSORS)}")
    return WorkNeeded(True, f"micro-batch {micro_batch.number}")


def _destination(context: Context, destination: str) -> WorkNeeded:
    broker = context.broker
    status = broker.status().status
    if status in ("stopped", "degraded"):
        return WorkNeeded(False, f"the pipeline is {status}")
    completed = broker.complete_unmatched(destination)
    cursor, sealed = broker.delivery(destination).cursor, broker.latest_sealed()
    if cursor >= sealed:
        said = f"{completed} micro-batches had nothing for it" if completed else "nothing to deliver"
        return WorkNeeded(False, said, done=bool(completed))
    return WorkNeeded(True, f"micro-batches {cursor + 1} to {sealed}")
