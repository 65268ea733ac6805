"""Redrive: sends dead letters again, to exactly the destination that they failed at (SEMANTICS X2), and the records
that wait behind them (X4).

Per destination, in pieces of at most `CHUNK` records, each under the destination's own lease, so that live deliveries
and other operators wait meanwhile:

1. *mark* in the store the letters that a redrive that died had settled;
2. *claim* the letters that are still dead letters, and take the parked records of keys that no other letter holds back;
3. deliver them in their order through the destination's engine and policies, in a new epoch: new messages of the same
   records (C3), with the same ids (T8). A record that fails again is stored as a dead letter of this epoch (invariant
   8), its attempts added up;
4. *settle* as outcomes come: a letter leaves the index in one step with the destination's state;
5. *mark* in the store the operator, the letters sent and the time, and give back the letters that were not sent;
6. *unpark* keys that no record waits behind any more.

Letters from before the fan-out become letters of destinations first (`before_fan_out`).

A crash at any point leaves letters open, or settled and not yet marked; a second call goes on from there. Only records
that were sent and not settled are sent again, as after a crash of a live delivery (C10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.redrive import lease_node
from conduit_tasks.dead_letters.portions import first_groups, portions
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, Key, row_key
from conduit_tasks.delivery.reading import KILLED
from conduit_tasks.errors import StateLost
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.sending import leased, mark_settled, settling
from conduit_tasks.resend.before_fan_out import BeforeFanOut
from conduit_tasks.resend.letters import Item, Redriven, deliver_items
from conduit_tasks.resend.select import Rows, record_of, shares, stores
from conduit_tasks.resend.waiting import Waiting, row_position

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Destination

log = logging.getLogger(__name__)

CHUNK = 1_000
"""Limit of records under one lease, for which a live delivery waits; they also have CONDUIT_BATCH_BYTES at most, unless
a single one is larger."""


def redrive(
    context: Context,
    selection: Selection,
    by: str,
    *,
    wait: float,
    progress: Callable[[Redriven], None] = lambda _: None,
) -> list[Redriven]:
    """Sends the selected letters again. `by`: the operator, stored with each letter. `wait`: seconds for the lease.

    `progress` is called after every chunk. Raises Unavailable (the destination is down), LeaseHeld, PipelineStopped,
    Fenced; letters that were settled before stay settled.
    """
    from conduit_tasks.micro_batch.forgotten import remember

    remember(context)
    out = []
    found, _ = shares(context, selection)
    first = BeforeFanOut(context, by, wait)
    if found and found[0].destination == BEFORE_FAN_OUT:
        for outcome in first.send(found[0].rows):
            progress(outcome)
        out.append(first.outcome)
        found, _ = shares(context, selection, first.places)
    elif context.broker.redrives.settled("") and not context.broker.leases.held_for(lease_node("")):
        # What a redrive under way has dispatched, it marks itself.
        first.tidy()
    rows = {share.destination: share.rows for share in found}
    for destination in context.pipeline.destinations:
        own = selection.destination in (None, destination.id)
        if destination.id in rows or (own and _unfinished(context, destination)):
            run = _Run(context, destination, by, wait)
            for outcome in run.send(rows.get(destination.id, [])):
                progress(outcome)
            if destination.id in rows:
                out.append(run.outcome)
    return out


def _unfinished(context: Context, destination: Destination) -> bool:
    """Returns whether a redrive that died left letters to be marked, or keys to be unparked; one under way does that
    itself."""
    if context.broker.leases.held_for(destination.node):
        return False
    return bool(context.broker.redrives.settled(destination.id)) or Waiting(context, destination).over()


@dataclass
class _Run:
    """Redrive of one destination. `isolate_poison`: attempts died without progress, so each record is
    sent alone (C10)."""

    context: Context
    destination: Destination
    by: str
    wait: float
    isolate_poison: bool = False
    outcome: Redriven = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = Redriven(self.destination.id)
        self._store, self._marks = stores(self.context)
        self._waiting = Waiting(self.context, self.destination)
        self._sent: set[Key] = set()

    def send(self, rows: Rows) -> Iterator[Redriven]:
        """Sends these letters in order of their positions, chunk by chunk, and then the records that wait behind them.
        Yields the outcome after each chunk."""
        # A letter that was sent according to the store is open only because Redis has forgotten it (X7): it leaves the
        # index, and is not sent once more behind the records that followed it. A pipeline that began again gives the
        # same numbers again.
        done = self._marks.read(self.destination.id) if rows else {}
        self._sent = {key for row in rows if (key := row_key(row)) in done and row["at"] < done[key].at}
        left = [list(group) for _, group in groupby(rows, key=record_of)]
        while True:
            with self._leased() as lease:
                self.isolate_poison |= lease.attempts > self.destination.delivery.max_redeliveries
                alone = self.isolate_poison or bool(left and _deadly(left[0]))
                most = 1 if alone else first_groups(self._store, left, CHUNK)
                chunk = left[:most] if alone else _together(left[:most])
                left = left[len(chunk) :]
                more = self._chunk(lease, [row for group in chunk for row in group], alone=alone)
            if not more and not left:
                return
            yield self.outcome

    def _leased(self) -> Lease:
        """Acquires the lease of the destination. If Redis has forgotten something of it since this redrive began, its
        state is brought back first (X7)."""
        from conduit_tasks.micro_batch.forgotten import remember

        try:
            return leased(self.context, self.destination, self.wait)
        except StateLost:
            remember(self.context)
        return leased(self.context, self.destination, self.wait)

    def _chunk(self, lease: Lease, rows: Rows, *, alone: bool) -> bool:
        """Claims, delivers, marks, unparks. Returns False if there was nothing to send."""
        broker, name = self.context.broker, self.destination.id
        marker = Marker(self.context, self.destination.node, lease.token)
        with keeping(lease):
            mark_settled(self.context, name, lease.token, marker)
            if sent := [key for row in rows if (key := row_key(row)) in self._sent]:
                broker.redrives.purge(name, sent)
                self.outcome.gone += len(sent)
                rows = [row for row in rows if row_key(row) not in self._sent]
            asked = {row_key(row) for row in rows}
            waiting = [] if alone and rows else self._waiting.released(asked)
            if not rows and not waiting:
                self._waiting.unpark(lease)
                return False
            epoch, claimed = broker.redrives.claim(name, lease.token, self.by, sorted(asked))
            if len(claimed) < len(asked):
                self.outcome.gone += len(asked) - len(claimed)
                waiting = waiting and self._waiting.released(set(claimed))
            items = self._items(set(claimed), rows)
            parked = next(portions(self._waiting.load(waiting), 1 if alone else CHUNK), [])
            items += map(Item, parked)
            items.sort(key=lambda item: item.position)
        with settling(self.context, name, lease, marker):
            if items:
                with halting_call(broker, self.destination.node):
                    self._deliver(lease, epoch, items, alone=alone)
        with keeping(lease):
            self.outcome.waiting = self._waiting.unpark(lease)
        return bool(rows or items)

    def _items(self, claimed: set[Any], rows: Rows) -> list[Item]:
        """Returns one item per record, as it failed last, which settles all its letters."""
        mine = [row for row in rows if row_key(row) in claimed]
        groups = [sorted(group, key=lambda row: row["at"]) for _, group in groupby(mine, key=record_of)]
        letters = self._store.load([group[-1] for group in groups])
        return [Item(letter, tuple(map(row_key, group))) for letter, group in zip(letters, groups)]

    def _deliver(self, lease: Lease, epoch: int, items: Sequence[Item], *, alone: bool) -> None:
        """Delivers items through the engine; with `alone`, a record that may kill its worker in a process of its
        own."""
        deliver = partial(deliver_items, self.context.pipeline, self.destination, lease.token, epoch, items, by=self.by)
        if not alone:
            done = deliver()
        else:
            from conduit_tasks.delivery.isolated import ChildDied, in_child, survives_forks

            try:
                done = in_child(deliver, forks=survives_forks(self.destination))
            except ChildDied as died:
                log.warning("redriving record %s ended its process: %s", items[0].letter.record.id, died.how)
                done = deliver(culprits=range(len(items)))
        self.outcome.add(done)


def _together(groups: Sequence[Rows]) -> list[Rows]:
    """Returns the first records that can be sent in one epoch: none may have killed its worker, and no two the same
    position, as what fails again becomes a letter of that epoch."""
    seen = set()
    for n, group in enumerate(groups):
        at = row_position(group[0])
        if at in seen or _deadly(group):
            return list(groups[:n])
        seen.add(at)
    return list(groups)


def _deadly(group: Rows) -> bool:
    return any(row["error_class"] == KILLED for row in group)
