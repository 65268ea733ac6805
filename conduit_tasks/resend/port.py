"""The port of records that are sent again, which do not vote in the nack window and stop no pipeline, and how they are
handed to the engines (SEMANTICS X2, X3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.micro_batch.sending import send

if TYPE_CHECKING:
    from conduit_tasks.delivery.handlers import StateChange
    from conduit_tasks.delivery.work import DeliveryReport, Work
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.record.counts import Counts
    from conduit_tasks.record.dead_letter import DeadLetter
    from conduit_tasks.topology import Destination

Confirm = Callable[[Sequence[tuple[int, int]], "Counts", dict[str, Any] | None, Sequence["DeadLetter"]], None]
"""Tells the broker what became of some seqs: ranges, counts, the destination's state, dead letters (stored by now)."""


class ResendPort(BrokerPort):
    """Port of a resend for the engine. Its records do not vote, and no failure here stops the pipeline.

    `token`: of the lease; `epoch`: of the claim. `confirm`: what a redrive and a replay do differently. `original`:
    gives a letter of the engine the true position of its record.
    """

    def __init__(  # noqa: PLR0917 - what it is made of
        self,
        context: Context,
        destination: Destination,
        token: int,
        epoch: int,
        confirm: Confirm,
        original: Callable[[DeadLetter], DeadLetter] = lambda letter: letter,
    ) -> None:
        handler = context.dead_letters(destination.dead_letters, destination.id)
        lease = context.broker.leases.attach(destination.node, token)
        super().__init__(context.broker, lease, destination, 0, "", handler, epoch=epoch)
        self._confirm, self._original = confirm, original

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """See DeliveryPort."""
        began = time.monotonic()
        self._confirm(ranges, counts, state, dead)
        self._lease.renewed(began)

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        """See DeliveryPort."""
        super().store_dead([self._original(letter) for letter in letters])

    def fail(self, error: str, error_class: str) -> None:
        """Does nothing: the operator sees the error that is raised, and the pipeline goes on."""


def send_again(
    context: Context,
    work: Work,
    connector: Any,
    port: ResendPort,
    token: int,
    *,
    run: str | None,
    processed: bool = False,
) -> DeliveryReport:
    """Delivers a work as `micro_batch.sending.send` does, at least once also if the destination says at most once."""
    options = context.pipeline.destination(work.destination).delivery
    if options.guarantee == "at-most-once":
        # Records are sent again because an operator asks for it; their marks would overwrite those of live deliveries.
        options = replace(options, guarantee="at-least-once")
    return send(context, work, connector, port, token, run=run, options=options, processed=processed)


def announce(context: Context, node: str, letters: Sequence[DeadLetter], acked: Iterable[StateChange]) -> None:
    """Calls the handlers for what is about to be nacked and acked (C7). Raises HandlerFailed; by then the pipeline is
    degraded."""
    from conduit_tasks.delivery.handlers import BOTH, ERROR_CLASS, HandlerFailed, Handlers, nacked

    handlers = Handlers(context.pipeline, node)
    try:
        if handlers.wants("nacked", *BOTH):
            handlers.call(nacked(context.pipeline.id, letters), *BOTH)
        if handlers.wants("acked", *BOTH):
            handlers.call(acked, *BOTH)
    except HandlerFailed as error:
        context.broker.lifecycle.fail(node, str(error), ERROR_CLASS)
        raise
