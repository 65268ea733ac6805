"""One portion of a replay on its way to one destination: marks each record with the run (`conduit.replay`), and tells
the broker what became of it (SEMANTICS X3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Letter
from conduit_tasks.delivery.numbering import watched
from conduit_tasks.delivery.work import Work
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.numbering import numbering_again
from conduit_tasks.micro_batch.sending import connect
from conduit_tasks.resend.port import ResendPort, send_again

if TYPE_CHECKING:
    from conduit_tasks.delivery.work import DeliveryReport
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter
    from conduit_tasks.resend.select import ChosenRows
    from conduit_tasks.topology import Destination

MARK = "conduit.replay"
"""Metadata of every replayed record: the run."""


@dataclass(frozen=True)
class PortionTask:
    """Delivery of one portion, possibly in a child process: `send` opens a connection of its own."""

    run: str
    destination: Destination
    number: int
    rows: ChosenRows
    seqs: dict[int, list[str]]
    token: int
    epoch: int
    """Epoch of the claim, for dead letters and the ledger."""
    stream: int
    """Epoch of the numbers, the same at every attempt."""
    letters: dict[Letter, int]

    def confirmed(self) -> Sequence[tuple[int, int]]:
        """Returns the ranges that are confirmed by now."""
        with opened(self.rows.context.pipeline, self.run) as own:
            return self._confirmed(own)

    def _confirmed(self, context: Context) -> Sequence[tuple[int, int]]:
        share = context.broker.replays.share(self.destination.id, self.run)
        return share.done.get(self.number, RangeSet(())).ranges if share else ()

    def send(self, span: tuple[int, int] | None, culprits: Collection[int]) -> DeliveryReport:
        """Sends the records that are not confirmed. `span`: only of these seqs; `culprits`: not sent, because they kill
        their worker. No key is parked: the records that would wait have been delivered."""
        pipeline, destination = self.rows.context.pipeline, self.destination
        with opened(pipeline, self.run) as own:
            portion = self.rows.portion
            origins = [replace(o, metadata={**o.metadata, MARK: self.run}) for o in portion.origins]
            connector = connect(pipeline.id, destination)
            numbering = numbering_again(
                pipeline.id, destination, connector, origins, epoch=self.stream + self.number, seqs=list(self.seqs)
            )
            work = Work(
                pipeline=pipeline.id,
                destination=destination.id,
                micro_batch=0,
                total=portion.total,
                matched=len(self.seqs),
                rows=lambda: self.rows.chosen(watched(numbering, self.rows.wanted())),
                origins=origins,
                confirmed=self._confirmed(own),
                epoch=self.epoch,
                span=span,
                culprits=culprits,
                numbering=numbering,
            )
            port = ResendPort(own, destination, self.token, self.epoch, partial(self._confirm, own))
            return send_again(own, work, connector, port, self.token, run=self.run)

    def _confirm(
        self,
        context: Context,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        state: dict[str, Any] | None,
        dead: Sequence[DeadLetter],
    ) -> None:
        told, again = RangeSet.of(ranges), {letter.seq for letter in dead}
        settled = {key: AGAIN if seq in again else REDRIVEN for key, seq in self.letters.items() if seq in told}
        context.broker.replays.confirm(
            self.destination.id,
            self.run,
            self.token,
            self.number,
            ranges,
            {"redelivered": counts.delivered, "retried": counts.retried},
            state=state,
            settled=settled,
            dead=dead,
        )
