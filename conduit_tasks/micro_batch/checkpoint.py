"""Keeps the marks beside the manifests up to date, and notices a Redis that has forgotten what they say (SEMANTICS X7).

A destination's mark is written when a delivery ends and every half minute of a long one, a source's when its ack is
given. Nothing is collected before marks prove that it is delivered and acked: so where Redis forgets its last moments,
and then names files that are gone, something else knows that they were delivered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.errors import ConduitError, LeaseHeld, SpoolError, StateLost
from conduit_tasks.micro_batch.beside import beside
from conduit_tasks.spool.checkpoint import SEALED, Checkpoint, Mark, covers, token_of, tokens

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.pipeline.topology import Pipeline

log = logging.getLogger(__name__)

EVERY = 30.0
"""Seconds between two marks of one micro-batch's delivery."""


class Marker:
    """Writes the marks of one node, whose lease the caller holds under `token`. Safe from several threads."""

    def __init__(self, context: Context, node: str, token: int) -> None:
        self._broker, self._node, self._token = context.broker, node, token
        self._checkpoint = Checkpoint(context.spool, context.pipeline.id)
        self._lock = threading.Lock()

    def mark(self) -> None:
        """Durable on return. Raises SpoolError."""
        with self._lock:
            at = int(self._broker.now() * 1e6)
            kind, _, id = self._node.partition(".")
            read = _destination if kind == "destinations" else _source
            number, hashes = read(self._broker, id)
            self._checkpoint.write(Mark(self._node, self._token, at, number, hashes))

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Marks every now and then meanwhile."""

        def mark() -> bool:
            try:
                self.mark()
            except ConduitError as error:
                log.warning("%s: no checkpoint was written, trying again: %s", self._node, error)
            return True

        with beside(f"checkpoint {self._node}", EVERY, mark):
            yield


def _destination(broker: Broker, id: str) -> tuple[int, dict[str, dict[str, str]]]:
    state = broker.hash(broker.keys.destination(id))
    return int(state.get("cursor", 0)), {"destination": state, "window": broker.hash(broker.keys.window(id))}


def _source(broker: Broker, id: str) -> tuple[int, dict[str, dict[str, str]]]:
    number = int(broker.hash(broker.keys.ack(id)).get("m", 0))
    acked = broker.hash(broker.keys.acked(id))
    index = broker.hash(broker.keys.index(id))
    # Looked at after: what is staged of it is numbered already, and would be numbered again.
    unsealed = broker.unsealed()
    stage = unsealed.stages.get(f"sources.{id}") if unsealed else None
    if unsealed is not None and stage is not None:
        for piece, first in zip(unsealed.slices[id], stage.first_index or ()):
            index[piece.partition] = str(min(first, int(index.get(piece.partition, first))))
    return number, {"acked": acked, "index": index, "totals": _totals(broker)}


def _totals(broker: Broker) -> dict[str, str]:
    """The counts of everything up to micro-batch `sealed`, which is among them."""
    while True:
        sealed = broker.latest_sealed()
        totals = {name: str(n) for name, n in broker.totals().items()}
        if sealed == broker.latest_sealed():
            return {**totals, SEALED: str(sealed)}


def proven(context: Context, numbers: Sequence[int]) -> int:
    """How many of these micro-batches, which follow each other, marks prove delivered and acked.

    Marks of nodes that lag behind are brought up to date first, unless somebody works on them.
    """
    if not numbers:
        return 0
    pipeline, broker = context.pipeline, context.broker
    checkpoint = Checkpoint(context.spool, pipeline.id)
    manifests = broker.read(*(("HGET", broker.keys.micro_batch(m), "manifest") for m in numbers))
    there = {m: token_of(path) for m, path in zip(numbers, manifests) if path}
    nodes = _nodes(pipeline)
    marks = checkpoint.read()
    for node in nodes:
        if covers(marks.get(node), there) < numbers[-1]:
            try:
                with broker.acquire(node, context.owner) as lease:
                    Marker(context, node, lease.token).mark()
            except LeaseHeld:
                continue
    marks = checkpoint.read()
    limit = min(covers(marks.get(node), there) for node in nodes)
    return sum(m <= limit for m in numbers)


def _nodes(pipeline: Pipeline) -> list[str]:
    """Those that have marks."""
    return [*(d.node for d in pipeline.destinations), *(f"acks.{s.id}" for s in pipeline.sources)]


def remember(context: Context) -> None:
    """Called before anything is planned: raises StateLost where Redis is empty and the spool is not.

    Where Redis has merely forgotten its last moments, and with them that collected micro-batches were delivered, its
    state is brought back from the spool.
    """
    from conduit_tasks.broker import rebuild

    pipeline, broker, spool = context.pipeline, context.broker, context.spool
    marks = Checkpoint(spool, pipeline.id).read()
    if not rebuild.holds_state(broker):
        if any(mark.number for mark in marks.values()) or tokens(spool, pipeline.id):
            folder = spool.uri(spool.folder(pipeline.id, 1).rpartition("/")[0])
            raise StateLost(
                f"Redis knows nothing of pipeline {pipeline.id}, but its spool does: the state is lost, or this is "
                f"another Redis. Bring it back with `conduit broker rebuild {pipeline.id}` (--dry-run says what it "
                f"would do). To begin anew and read everything again, remove {folder}"
            )
        return
    if (gone := _forgotten(context, marks)) is None:
        return
    log.warning(
        "%s: Redis has forgotten that micro-batch %d was delivered and collected; its state is rebuilt from the spool",
        pipeline.id,
        gone,
    )
    rebuild.apply(broker, rebuild.from_spool(pipeline, spool, broker), replace=True)


def _forgotten(context: Context, marks: dict[str, Mark]) -> int | None:
    """A micro-batch whose files are gone, while Redis says it is to be delivered or acked; None: there is none."""
    pipeline, broker = context.pipeline, context.broker
    nodes = _nodes(pipeline)
    if any(node not in marks for node in nodes):
        return None
    highest = min(marks[node].number for node in nodes)
    reached = _reached(broker, [d.id for d in pipeline.destinations], [s.id for s in pipeline.sources])
    if reached >= highest:
        return None
    there = tokens(context.spool, pipeline.id)
    proved = min(covers(marks[node], there) for node in nodes)
    return next((m for m in range(proved, reached, -1) if m not in there), None)


def _reached(broker: Broker, destinations: Sequence[str], sources: Sequence[str]) -> int:
    """What Redis says is delivered and acked."""
    _, *cursors = broker.cursors(destinations)
    acked = [int(n or 0) for n in broker.read(*(("HGET", broker.keys.ack(s), "m") for s in sources))]
    return min([*cursors, *acked])


def try_to_mark(marker: Marker) -> None:
    """Marks; a spool that cannot be written is logged: what is not marked is not collected, nothing else follows."""
    try:
        marker.mark()
    except SpoolError as error:
        log.warning("no checkpoint was written: %s", error)
