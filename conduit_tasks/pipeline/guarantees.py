"""Guarantees of each edge of a pipeline and the faults it does not tolerate (SEMANTICS C9–C12, O1–O6r, T6, T7, B8, X1,
X4): the sentences behind `conduit explain`, the DAG's documentation and the file's reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.pipeline.parallel import one_task, together
from conduit_tasks.pipes.registry import PIPES
from conduit_tasks.record.units import format_duration
from conduit_tasks.topology import INDEX_PIPES, TOGETHER, UNTOLD, DeadLetterQueue, Destination, Pipeline, Source

BEGUN_AHEAD = 500
"""Records by which the at-most-once mark may be ahead of the sends (`delivery.at_most_once.AHEAD`)."""


@dataclass(frozen=True)
class Edge:
    """Guarantees of one edge. Every text is one line for people; `rules` are the numbers of SEMANTICS behind it."""

    source: str
    target: str
    guarantee: str
    order: str
    acked: str
    duplicates: str
    dedupe: str
    failures: str
    not_tolerated: tuple[str, ...]
    rules: tuple[str, ...] = field(default=())


_REPEATS = {
    False: "none: a slice that is read again gives the same records with the same ids (invariant 3)",
    True: "messages that the queue hands out again: sealed, and a crash or an outage was before their ack (C10)",
    None: "none, unless the source is a queue that hands a message out again before its ack (C10)",
}
"""By whether the source is a `Queue`; None if its class is not known."""


_ACKED = {
    "stored": "once its micro-batch is sealed: the spool then stands for the source (T2)",
    "delivered": (
        "after every matching destination confirmed, or its dead letter is stored; in order, once (T2, C11, C12)"
    ),
    None: "in order, once, as the page of its connector says (T2, C11, C12); `conduit explain` looks it up",
}
"""By `ack-on`; None if the file does not set it and the connector's class is not known."""


def _is_queue(connector: type) -> bool:
    from conduit_tasks.connectors.capabilities import Queue

    return issubclass(connector, Queue)


def source_edge(source: Source, connector: type | None = None) -> Edge:
    """Describes the edge from a source into the pipeline. `connector`: its class, which tells whether it is a queue;
    None = unknown."""
    ack_on = source.ack_on or getattr(connector, "ack_on", None)
    acked = _ACKED[ack_on]
    not_tolerated = ["what was read but not yet sealed changes in the source or disappears from it"]
    if ack_on == "stored":
        not_tolerated.append("loss of the spool before every destination has confirmed")
    if source.durability == "redis":
        not_tolerated.append("loss of Redis before the event is in the spool (durability: spool closes this)")
    return Edge(
        source=source.node,
        target="pipeline",
        guarantee="at-least-once",
        order="per partition, as the source gives them; free between partitions and sources (C9)",
        acked=acked,
        duplicates=_REPEATS[None if connector is None else _is_queue(connector)],
        dedupe="each record has a stable id: a hash of pipeline, connector, partition, position and ordinal",
        failures="a record that cannot be read or processed is nacked alone; the rest goes on (C5)",
        not_tolerated=tuple(not_tolerated),
        rules=("C9", "C11", "C12", "T2"),
    )


def destination_edge(pipeline: Pipeline, destination: Destination, connector: type | None = None) -> Edge:
    """Describes the edge from the pipeline to a destination. `connector`: its class, which tells how it writes;
    None = unknown."""
    delivery = destination.delivery
    pipe = PIPES[delivery.pipe]
    drops = destination.dead_letters.plugin == "log"
    guarantee: str = delivery.guarantee
    if drops and guarantee != "at-most-once":
        guarantee += ", at-most-once for failed records (they are dropped)"
    not_tolerated = [pipe.not_tolerated, *_not_tolerated(destination, connector)]
    if not pipeline.isolate:
        not_tolerated.append("long outages of this destination without holding up the others (isolate: true)")
    duplicates, dedupe = _duplicates(destination, connector)
    return Edge(
        source="pipeline",
        target=destination.node,
        guarantee=guarantee,
        order=_order(destination, connector),
        acked=f"{pipe.delivery} ({pipe.number}); survives {pipe.tolerates}; needs {pipe.needs}",
        duplicates=duplicates,
        dedupe=dedupe,
        failures=_failures(destination),
        not_tolerated=tuple(not_tolerated),
        rules=(pipe.number, "C4", "C9", "C10", "T4", "T6", "T7"),
    )


def nack_window(queue: DeadLetterQueue, tasks: int = 1) -> str:
    """Describes the effect of a nack (C5, C6). `tasks`: number of tasks that have a window each, at most."""
    where = {None: "the project's dead-letter store", "log": "the log only (dropped)"}.get(
        queue.plugin, f"the plugin {queue.plugin} and the project's dead-letter store"
    )
    if queue.window_size == 0:
        return f"failed records go to {where}, without a limit"
    if queue.window_nack_threshold == 0:
        return "the first failed record stops the pipeline"
    of_each = f" of one of up to {tasks} tasks" if tasks > 1 else ""
    return (
        f"failed records go to {where}; more than {queue.window_nack_threshold} among the last "
        f"{queue.window_size}{of_each} stop the pipeline"
    )


def writes(connector: type | None) -> str:
    """Returns how a destination class writes: `record`, `batch`, or `unknown`."""
    if connector is None:
        return "unknown"
    from conduit_tasks.connectors.base import BatchDestination

    return "batch" if issubclass(connector, BatchDestination) else "record"


def _order(destination: Destination, connector: type | None) -> str:
    delivery = destination.delivery
    tasks = _tasks(destination, connector)
    alone = delivery.parallelism == 1 or one_task(destination, connector)
    if delivery.order_by != "partition" and alone and writes(connector) == "batch":
        parked = ", but for keys that are parked" if delivery.park_keys else ""
        return f"all records in their order, one write after the other, whatever order-by says (C9){parked}" + tasks
    if delivery.order_by == "none":
        return "not kept: a record that is sent again may be overtaken" + tasks
    if delivery.order_by == "key":
        return "per key, in 64 lanes; free between keys" + tasks
    return "per source partition, as the source gave them (C9)" + tasks


def _tasks(destination: Destination, connector: type | None) -> str:
    """Returns how many tasks deliver, if the file asks for several: none of them waits for another."""
    asked, most = destination.delivery.parallelism, destination.delivery.most_tasks
    if asked == 1:
        return ""
    if why := one_task(destination, connector):
        return f"; by one task, though parallelism is {asked}: {why}"
    text = f"; by up to {most} tasks beside each other, a lane by one of them"
    if asked == "auto":
        text += ": as many as Spark's default parallelism when the micro-batch is begun (auto), one if it is small"
    if together(destination, connector):
        text += f"; up to {TOGETHER} micro-batches at once, if the lag budget lets so many be read"
    return text


def _duplicates(destination: Destination, connector: Any) -> tuple[str, str]:
    """Returns two texts: where duplicates can arise (C10), and what drops them."""
    delivery, how = destination.delivery, writes(connector)
    dedupe = "the receiver can drop repeated ids; id and idempotency header never change between attempts (T8)"
    keeps_index = how == "batch" and connector.keeps_index
    if keeps_index and (delivery.guarantee != "at-least-once" or delivery.pipe in INDEX_PIPES):
        return "none: the number of the last row is stored with the rows, and a repetition is dropped (B8, O5)", "done"
    if how == "batch" and connector.effectively_once and not keeps_index:
        return "none: after a crash it goes back to exactly what was confirmed", "not needed"
    if how == "batch" and connector.idempotent(destination.settings):
        return "none: rows that are written again after a crash replace themselves, by record id", "done"
    if how == "batch":
        return "after a crash between a write and its confirmation: the rows of that write", dedupe
    if delivery.guarantee == "at-most-once":
        return "none: what may have been sent before a crash is not sent again", "not needed"
    if delivery.pipe in INDEX_PIPES:
        dedupe = "a receiver of this pipe drops repeated numbers (docs/pipes.md); ids do not change either (T8)"
    unconfirmed = f"{delivery.max_unconfirmed} unconfirmed record{'s' if delivery.max_unconfirmed > 1 else ''}"
    text = f"after a crash: at most {unconfirmed}, and up to {UNTOLD:,} whose answers the broker was not told yet"
    if delivery.most_tasks > 1 and not one_task(destination, connector):
        text += f", of each of up to {delivery.most_tasks} tasks"
    if delivery.retry:
        text += f"; a send that timed out after {format_duration(delivery.timeout)} but did arrive is repeated"
    return text, dedupe


def _not_tolerated(destination: Destination, connector: Any) -> list[str]:
    """Returns the faults that the chosen guarantee does not survive (B8)."""
    guarantee, how = destination.delivery.guarantee, writes(connector)
    if guarantee == "at-most-once" and how != "batch":
        return [
            f"a crash without loss: what was on its way and up to {BEGUN_AHEAD} records behind it are given up",
            "a Redis that forgets its last second (appendfsync everysec): what it forgot may be sent twice",
        ]
    appends = how == "batch" and connector.keeps_index and not connector.idempotent(destination.settings)
    if guarantee == "effectively-once" and appends:
        return ["a Redis that forgets its last second between a write and its confirmation: the rows come twice"]
    return []


def _failures(destination: Destination) -> str:
    delivery = destination.delivery
    parts = []
    if delivery.retry:
        parts.append(
            f"{delivery.retry} retries, {delivery.backoff_policy} from {format_duration(delivery.backoff_delay)}"
        )
    else:
        parts.append("no retry within a run")
    if delivery.on_unavailable == "wait":
        parts.append("destination down: the cursor waits, nothing is dead-lettered")
    else:
        parts.append("destination down: its records become dead letters (T7)")
    if delivery.breaker is not None:
        b = delivery.breaker
        parts.append(
            f"{b.failures} failures in a row, over runs: nothing is sent for {format_duration(b.pause)}, twice as long "
            f"each time up to {format_duration(b.pause_max)}, then one record is tried, once (breaker)"
        )
    refused = "counts as delivered" if delivery.refused == "complete" else "is a nack"
    parts.append(f"an answer that a retry cannot improve {refused}")
    if destination.settings.get("schema") == "quarantine":
        parts.append("a record that does not fit the table is a dead letter that the nack window does not count")
    if delivery.park_keys:
        parts.append("after a dead letter, later records of its key are parked (X4)")
    return "; ".join(parts)
