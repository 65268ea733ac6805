"""Marks of a node: when they are written, whether Redis knows less than one of them, and what they prove to be done, so
that it may be collected (SEMANTICS X7).

A destination's mark is written when a delivery ends and every half minute of a long one; a source's before it is told
something, and when its ack is given. Nothing is collected before marks prove that it is delivered and acked. So if
Redis forgets its last moments, the spool still knows what a source was told, and `forgotten` brings it back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.errors import ConduitError, LeaseHeld, SpoolError, StateLost
from conduit_tasks.micro_batch.every import every
from conduit_tasks.spool.checkpoint import SEALED, Checkpoint, Mark, covers, exceeds, token_of
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.spool import Spool
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

EVERY = 30.0
"""Seconds between two marks of one micro-batch's delivery."""


class Marker:
    """Writes the marks of one node, whose lease the caller holds under `token`. Safe from several threads."""

    def __init__(self, context: Context, node: str, token: int) -> None:
        self._broker, self._node, self._token = context.broker, node, token
        self._spool, self._pipeline = context.spool, context.pipeline.id
        self._checkpoint = Checkpoint(context.spool, context.pipeline.id)
        self._lock = threading.Lock()
        self._last: Mark | None = None

    def mark(self) -> None:
        """Writes a mark, durable on return. Raises SpoolError, and StateLost if an earlier mark says more than Redis
        does now: that mark stays, for `forgotten` to bring the state back by it."""
        with self._lock:
            at = _at(self._broker)
            number, hashes = self._state()
            mark = Mark(self._node, self._token, at, number, hashes)
            self._believe(mark)
            self._checkpoint.write(mark)
            self._last = mark

    def look(self) -> None:
        """Raises StateLost as `mark` does. A holder whose lease is older than this look may work on what Redis says: if
        Redis forgets something later, it forgets the lease as well."""
        number, hashes = self._state()
        self._believe(Mark(self._node, self._token, 0, number, hashes))

    def _state(self) -> tuple[int, dict[str, dict[str, str]]]:
        node = Node(self._node)
        return (_destination if node.kind == "destinations" else _source)(self._broker, node.id)

    def _believe(self, now: Mark) -> None:
        before = self._last or self._checkpoint.read(self._node).get(self._node)
        _compare(before, now, self._spool, self._pipeline)

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Writes a mark every `EVERY` seconds while the block runs."""

        def mark() -> bool:
            if self._lock.locked():
                return True  # one is being written
            try:
                self.mark()
            except ConduitError as error:
                log.warning("%s: no checkpoint was written, trying again: %s", self._node, error)
            return True

        with every(f"checkpoint {self._node}", EVERY, mark):
            yield


def look(broker: Broker, spool: Spool, node: str) -> None:
    """Raises StateLost if the mark of a destination says more than Redis does."""
    number, hashes = _destination(broker, Node(node).id)
    before = Checkpoint(spool, broker.pipeline).read(node).get(node)
    _compare(before, Mark(node, 0, 0, number, hashes), spool, broker.pipeline)


def _compare(before: Mark | None, now: Mark, spool: Spool, pipeline: str) -> None:
    if before is not None and exceeds(before, now.known, spool, pipeline):
        raise StateLost(
            f"Redis has forgotten how far {now.node} of pipeline {pipeline} was (it says {now.claims}, the mark in the "
            f"spool {before.claims}; {now.known.words} words of it, the mark {before.known.words}); the next run "
            "brings its state back"
        )


def _destination(broker: Broker, id: str) -> tuple[int, dict[str, dict[str, str]]]:
    state, window = broker.access.destination(id)
    return int(state.get("cursor", 0)), {"destination": state, "window": window}


def _at(broker: Broker) -> int:
    """Returns microseconds, not below any token that sealed a micro-batch, even if the server's clock went back."""
    newest = broker.access.field(broker.keys.lease("seal"), "token")
    return max(int(broker.access.now() * 1e6), int(newest or 0))


def _source(broker: Broker, id: str) -> tuple[int, dict[str, dict[str, str]]]:
    keys = broker.keys
    while True:
        ack, intent = broker.access.hash(keys.ack(id)), broker.access.hash(keys.intent(id))
        acked = broker.access.scanned(keys.acked(id))
        counted = broker.access.scanned(keys.index(id))
        # Read after the index: staged records are numbered in it already, and would be numbered again.
        unsealed = broker.micro_batches.unsealed()
        stage = unsealed.stages.get(Node.source(id)) if unsealed else None
        index = dict(counted)
        if unsealed is not None and stage is not None:
            for piece, first in zip(unsealed.slices[id], stage.first_index or ()):
                index[piece.partition] = str(min(first, int(index.get(piece.partition, first))))
        hashes = {"ack": ack, "intent": intent, "acked": acked, "index": index, "totals": _totals(broker)}
        # Redis may have forgotten something between two of these: then they are not of one moment.
        if broker.access.hash(keys.ack(id)) == ack and broker.access.scanned(keys.index(id)) == counted:
            return int(ack.get("m", 0)), hashes


def _totals(broker: Broker) -> dict[str, str]:
    """Returns the counts of everything up to the last sealed micro-batch, and that micro-batch's number as `sealed`."""
    while True:
        sealed = broker.micro_batches.latest_sealed()
        totals = {name: str(n) for name, n in broker.micro_batches.totals().items()}
        if sealed == broker.micro_batches.latest_sealed():
            return {**totals, SEALED: str(sealed)}


def proven(context: Context, numbers: Sequence[int]) -> int:
    """Returns how many of these consecutive micro-batches the marks prove to be delivered and acked.

    Marks of nodes that lag behind are brought up to date first, unless another holder works on them.
    """
    if not numbers:
        return 0
    pipeline, broker = context.pipeline, context.broker
    checkpoint = Checkpoint(context.spool, pipeline.id)
    manifests = broker.access.read(*(("HGET", broker.keys.micro_batch(m), "manifest") for m in numbers))
    there = {m: token_of(path) for m, path in zip(numbers, manifests) if path}
    nodes = marked(pipeline)
    marks = checkpoint.read()
    for node in nodes:
        if covers(marks.get(node), there) < numbers[-1]:
            try:
                with broker.leases.acquire(node, context.owner) as lease:
                    Marker(context, node, lease.token).mark()
            except LeaseHeld:
                continue
    marks = checkpoint.read()
    limit = min(covers(marks.get(node), there) for node in nodes)
    return sum(m <= limit for m in numbers)


def away(context: Context) -> bool:
    """Returns whether a node that is not in the pipeline file may come back to it, behind what is collected meanwhile.
    The marks of those in the file say that they do not need it (`proven`)."""
    if context.broker.versions.left():
        return True
    return bool(Checkpoint(context.spool, context.pipeline.id).besides(marked(context.pipeline)))


def marked(pipeline: Pipeline) -> list[str]:
    """Returns the nodes that have marks."""
    return [*(d.node for d in pipeline.destinations), *(Node.ack(s.id) for s in pipeline.sources)]


def try_to_mark(marker: Marker) -> None:
    """Writes a mark. A spool that cannot be written is only logged: what is not marked is just not collected."""
    try:
        marker.mark()
    except SpoolError as error:
        log.warning("no checkpoint was written: %s", error)
