"""One portion of a replay on its way to one destination: the work of the engines, and their port to the broker."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Letter
from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.replay.prepare import MARK

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.delivery.work import DeliveryReport
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter
    from conduit_tasks.replay.select import Selected
    from conduit_tasks.topology import Destination


@dataclass(frozen=True)
class PortionTask:
    """Delivery of one portion, possibly in a child process: `send` opens a connection of its own."""

    run: str
    destination: Destination
    number: int
    selected: Selected
    seqs: dict[int, list[str]]
    token: int
    epoch: int
    """Epoch of the claim, for dead letters and the ledger."""
    stream: int
    """Epoch of the numbers, the same at every attempt."""
    letters: dict[Letter, int]

    def confirmed(self) -> Sequence[tuple[int, int]]:
        """Returns the ranges that are confirmed by now."""
        from conduit_tasks.micro_batch.context import opened

        with opened(self.selected.context.pipeline, self.run) as own:
            return self._confirmed(own)

    def _confirmed(self, context: Context) -> Sequence[tuple[int, int]]:
        share = context.broker.replays.share(self.destination.id, self.run)
        return share.done.get(self.number, RangeSet(())).ranges if share else ()

    def send(self, span: tuple[int, int] | None, culprits: Collection[int]) -> DeliveryReport:
        """Sends the records that are not confirmed. `span`: only of these seqs; `culprits`: not sent, because they kill
        their worker."""
        from conduit_tasks.delivery.engine import deliver
        from conduit_tasks.delivery.handlers import Changes, Handlers
        from conduit_tasks.delivery.numbering import watched
        from conduit_tasks.delivery.work import Work
        from conduit_tasks.micro_batch.checkpoint import Marker
        from conduit_tasks.micro_batch.context import opened
        from conduit_tasks.micro_batch.deliver import connect
        from conduit_tasks.micro_batch.numbering import numbering_again
        from conduit_tasks.micro_batch.recorded import recording
        from conduit_tasks.processors.chain import Chain

        pipeline, destination, run = self.selected.context.pipeline, self.destination, self.run
        with opened(pipeline, run) as own:
            portion = self.selected.portion
            origins = [replace(o, metadata={**o.metadata, MARK: run}) for o in portion.origins]
            connector = connect(pipeline.id, destination)
            numbering = numbering_again(
                pipeline.id, destination, connector, origins, epoch=self.stream + self.number, seqs=list(self.seqs)
            )
            port = ReplayPort(own, own.broker.leases.attach(destination.node, self.token), destination, self)
            chain = Chain(destination.processors) if destination.processors else None
            options = destination.delivery
            if options.guarantee == "at-most-once":
                # Records are sent again because an operator asks for it; their marks would overwrite those of live
                # deliveries.
                options = replace(options, guarantee="at-least-once")
            work = Work(
                pipeline=pipeline.id,
                destination=destination.id,
                micro_batch=0,
                total=portion.total,
                matched=len(self.seqs),
                rows=lambda: self.selected.rows(watched(numbering, self.selected.wanted())),
                origins=origins,
                confirmed=self._confirmed(own),
                state=own.broker.deliveries.get(destination.id).state,
                chain=chain,
                epoch=self.epoch,
                span=span,
                culprits=culprits,
                numbering=numbering,
                look=Marker(own, destination.node, self.token).look,
                rested=partial(own.broker.deliveries.rested, destination.id),
            )
            handlers = Handlers(pipeline, destination.node)
            changes = Changes(handlers, work) if handlers else None
            try:
                with recording(own, self, work) as tally:
                    return deliver(work, connector, port, options, changes=changes, tally=tally)
            finally:
                if chain is not None:
                    chain.close()


class ReplayPort(BrokerPort):
    """Port of a replay for the engine. Replayed records do not vote, no failure here stops the pipeline, and no key is
    parked: the records that would wait have been delivered."""

    def __init__(self, context: Context, lease: Lease, destination: Destination, portion: PortionTask) -> None:
        handler = context.dead_letters(destination.dead_letters, destination.id)
        super().__init__(context.broker, lease, destination, 0, "", handler, epoch=portion.epoch)
        self._portion = portion

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """See DeliveryPort; confirms in one command."""
        began = time.monotonic()
        told, again = RangeSet.of(ranges), {letter.seq for letter in dead}
        settled = {k: AGAIN if seq in again else REDRIVEN for k, seq in self._portion.letters.items() if seq in told}
        numbers = asdict(counts)
        self._broker.replays.confirm(
            self._destination.id,
            self._portion.run,
            self._lease.token,
            self._portion.number,
            ranges,
            {"redelivered": numbers["delivered"], "retried": numbers["retried"]},
            state=state,
            settled=settled,
            dead=dead,
        )
        self._lease.renewed(began)

    def fail(self, error: str, error_class: str) -> None:
        """Does nothing: the operator sees the error that is raised, and the pipeline goes on."""
