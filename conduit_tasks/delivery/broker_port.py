"""The port of a delivery of one micro-batch to one destination, on Redis: confirms with parked keys, latencies and
closed letters, votes, and failures, which stop the pipeline or, with `isolate`, the destination; under one lease
(`delivery.port.DeliveryPort`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.leases import Lease
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import AGAIN, REDRIVEN, Letter
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.parking import Parking
    from conduit_tasks.delivery.latency import Latencies
    from conduit_tasks.topology import Destination


class Store(Protocol):
    """A store of dead letters."""

    def store(self, letters: Sequence[DeadLetter]) -> Any:
        """Stores letters: durable on return, idempotent by `DeadLetter.key` (invariant 8)."""


class BrokerPort:
    """The DeliveryPort that talks to Redis.

    `run`: the run whose confirms are remembered for `retention` seconds. `epoch` above 0: a redelivery
    (`Redeliveries.begin`), in which records do not vote a second time; `sent` then returns those of the given seqs that
    have rows for this destination. `parking`: of the same work; its records are stored before the confirm, and its keys
    are parked with it (X4). `latencies`: of the same work; sent with the confirm. `shard`: whose window the
    records vote in.
    """

    def __init__(  # noqa: PLR0917  # the six parts of a port
        self,
        broker: Broker,
        lease: Lease,
        destination: Destination,
        m: int,
        run: str,
        store: Store,
        *,
        isolate: bool = False,
        retention: float = 86_400.0,
        epoch: int = 0,
        sent: Callable[[set[int]], set[int]] = set,
        parking: Parking | None = None,
        latencies: Latencies | None = None,
        shard: int = 0,
    ) -> None:
        self._parking, self._latencies = parking, latencies
        self._began = time.monotonic()
        self._broker, self._lease, self._destination = broker, lease, destination
        self._m, self._run, self._store = m, run, store
        self._isolate, self._retention, self._epoch = isolate, retention, epoch
        self._shard = shard
        self._sent = sent
        self._earlier: list[Letter] | None = None

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """See DeliveryPort; one command. Raises the errors of the parking store: then nothing is confirmed."""
        if self._parking is not None:
            self._parking.save()
        began = time.monotonic()
        self._broker.deliveries.confirm(
            self._destination.id,
            self._m,
            self._lease.token,
            ranges,
            counts,
            state=state,
            dead=dead,
            park=self._parking.to_park(dead) if self._parking is not None else None,
            run=self._run,
            retention=self._retention,
            epoch=self._epoch,
            closed=self._closed(ranges, dead) if self._epoch else None,
            observed=self._latencies.observed(ranges) if self._latencies is not None else None,
            completing=observed(self._destination.node, "deliver", time.monotonic() - self._began),
        )
        self._lease.renewed(began)

    def _closed(self, ranges: Sequence[tuple[int, int]], dead: Sequence[DeadLetter]) -> dict[Letter, str]:
        """Returns the outcomes of the letters that records of these ranges left in earlier epochs: redriven, or dead
        again.

        Ranges also cover records that failed before the fan-out. If a redrive made such a record a letter of this
        destination, it has no row in the micro-batch: it was not sent here, and stays a letter (T4, X2)."""
        if self._earlier is None:
            found = [e for e in self._broker.dead_letters.entries(self._destination.id) if e.micro_batch == self._m]
            seqs = {e.seq for e in found if e.epoch < self._epoch}
            rows = self._sent(seqs) if seqs else seqs
            self._earlier = [(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in found if e.seq in rows]
        again, told = {letter.seq for letter in dead}, RangeSet.of(ranges)
        return {
            key: AGAIN if key[2] in again else REDRIVEN
            for key in self._earlier
            if key[2] in told and key[0] < self._epoch
        }

    def vote(
        self, first: int, votes: Sequence[tuple[str, int]], *, error: str = "", error_class: str = ""
    ) -> int | None:
        """See DeliveryPort."""
        if self._epoch:
            self._lease.renew()
            return None
        began = time.monotonic()
        window = self._destination.dead_letters
        tripped = self._broker.deliveries.vote(
            self._destination.id,
            self._m,
            self._lease.token,
            first,
            votes,
            size=window.window_size,
            threshold=window.window_nack_threshold,
            stop="destination" if self._isolate else "pipeline",
            error=error or "the nack window is used up",
            error_class=error_class or "nack window",
            shard=self._shard,
        )
        self._lease.renewed(began)
        return tripped

    def fail(self, error: str, error_class: str) -> None:
        """See DeliveryPort."""
        if self._isolate:
            self._broker.lifecycle.stop_destination(self._destination.id, error, error_class, self._m)
        else:
            self._broker.lifecycle.fail(self._destination.node, error, error_class, self._m)

    def give_up(self, error: str) -> None:
        """See DeliveryPort."""
        self._broker.leases.give_up(self._lease.node, self._lease.token, error)

    def store_dead(self, letters: Sequence[DeadLetter]) -> None:
        """See DeliveryPort; the lease is renewed first, and checked again by the confirm that follows."""
        self._lease.renew()
        self._store.store(letters)

    def begin_send(self, seq: int) -> None:
        """See DeliveryPort."""
        began = time.monotonic()
        self._broker.sending.begin(self._destination.id, self._m, self._lease.token, seq, epoch=self._epoch)
        self._lease.renewed(began)

    def renew(self) -> None:
        """See DeliveryPort."""
        began = time.monotonic()
        keys = self._broker.keys
        self._broker.access.run(
            scripts.RENEW,
            {
                "lease": keys.lease(self._lease.node),
                "scopes": [keys.pipeline, keys.destination(self._destination.id)],
            },
            token=self._lease.token,
        )
        self._lease.renewed(began)

    @property
    def send_until(self) -> float:
        """See DeliveryPort."""
        return self._lease.expires_at - self._destination.delivery.timeout
