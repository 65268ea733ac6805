"""A plain Python model of the broker.

Crashes, retries, scripts run twice, stale tokens, two destinations, confirms out of order, votes, acks, collection,
stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.leases import Lease
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Ack, Stage
from conduit_tasks.errors import Fenced, InvariantBroken, LeaseHeld, PipelineStopped
from tests.broker.conftest import make_broker, piece
from tests.broker.test_votes import Window, runs, voted
from tests.redis_server import RedisServer

DESTINATIONS = ("x", "y")
SIZE, THRESHOLD = 4, 2
_pipelines = count()


@dataclass
class Destination:
    cursor: int = 0
    confirmed: set[int] = field(default_factory=set)
    matched: int = 0
    nacked: int = 0
    state: dict[str, Any] | None = None
    window: Window = field(default_factory=lambda: Window(SIZE, THRESHOLD))
    voted_m: int = 0


@dataclass
class MicroBatch:
    start: int
    total: int
    staged: str | None = None
    sealed: bool = False
    unmatched: set[str] = field(default_factory=set)


class Machine(RuleBasedStateMachine):
    """Source `a`, destinations `x` and `y`. Holders disappear by being forgotten: leases live for 1 µs, so the next
    one takes over at once; the old one's token stays in `stale` and is tried again later."""

    server: ClassVar[RedisServer]

    @initialize(twice=st.booleans())
    def begin(self, twice: bool) -> None:
        Doubled.twice = twice
        self.broker: Broker = make_broker(self.server, f"model-{next(_pipelines)}", ttl=0.000001, grace=0.0)
        self.status = "running"
        self.error: str | None = None
        self.batches: dict[int, MicroBatch] = {}
        self.to = {d: Destination() for d in DESTINATIONS}
        self.planned = self.acked_m = self.acked = self.collected = 0
        self.intent: Ack | None = None
        self.given: list[int] = []
        self.held: dict[str, Lease] = {}
        self.stale: dict[str, list[Lease]] = {}
        self.says = count()
        self.tripped: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()

    # What the model knows

    @property
    def sealed(self) -> int:
        return max((m for m, b in self.batches.items() if b.sealed), default=self.collected)

    @property
    def unsealed(self) -> int | None:
        return next((m for m, b in self.batches.items() if not b.sealed), None)

    @property
    def halted(self) -> bool:
        return self.status in ("stopped", "degraded")

    def lease(self, node: str, data: st.DataObject | None) -> tuple[Lease, bool]:
        """A lease to work with, and whether it is fenced: newly acquired, the one held, or one lost before.

        Without `data`: the one held.
        """
        kind = data.draw(st.sampled_from(["held", "held", "new", "stale"]), label="lease") if data else "held"
        if data and kind == "stale" and self.stale.get(node):
            return data.draw(st.sampled_from(self.stale[node])), True
        if kind == "new" or node not in self.held:
            if node in self.held:
                self.stale.setdefault(node, []).append(self.held[node])
            lease = self.broker.leases.acquire(node, "t", wait=5.0)
            assert all(lease.token > old.token for old in self.stale.get(node, ()))
            self.held[node] = lease
        return self.held[node], False

    @contextmanager
    def expecting(self, *, fenced: bool = False, stopped: bool = False, broken: bool = False) -> Iterator[None]:
        error = Fenced if fenced else PipelineStopped if stopped else InvariantBroken if broken else None
        if error is None:
            yield
        else:
            with pytest.raises(error):
                yield

    # Rules

    @rule(twice=st.booleans())
    def clients_lose_answers(self, twice: bool) -> None:
        """From now on every script is run twice, or once."""
        Doubled.twice = twice

    @rule(total=st.integers(1, 8), off=st.integers(-1, 1))
    def open(self, total: int, off: int) -> None:
        expect = max(self.batches, default=self.collected) + 1
        slices = {"a": [piece(self.planned, self.planned + total)]}
        if self.unsealed is not None:
            assert self.broker.micro_batches.open(slices, "c", expect + off) == self.unsealed
            return
        with self.expecting(stopped=self.status != "running", fenced=self.status == "running" and off != 0):
            assert self.broker.micro_batches.open(slices, "c", expect + off) == expect
            self.batches[expect] = MicroBatch(self.planned, total)
            self.planned += total

    @precondition(lambda self: self.unsealed is not None)
    @rule(data=st.data())
    def stage(self, data: st.DataObject | None) -> None:
        m = self.unsealed
        assert m is not None
        batch = self.batches[m]
        lease, fenced = self.lease("sources.a", data)
        manifest = f"{lease.token}-{next(self.says)}"
        with self.expecting(fenced=fenced, stopped=self.halted):
            assert (
                self.broker.micro_batches.stage(
                    "sources.a", m, lease.token, Stage(manifest, [batch.total], batch.total)
                )
                == []
            )
            batch.staged = batch.staged or manifest

    @precondition(lambda self: self.unsealed is not None)
    @rule(data=st.data(), unmatched=st.sets(st.sampled_from(DESTINATIONS)))
    def seal(self, data: st.DataObject | None, unmatched: set[str]) -> None:
        m = self.unsealed
        assert m is not None
        batch = self.batches[m]
        lease, fenced = self.lease("seal", data)
        matched = {d: 0 if d in unmatched else batch.total for d in DESTINATIONS}
        with self.expecting(fenced=fenced, stopped=self.halted, broken=batch.staged is None):
            assert self.broker.micro_batches.seal(
                m, lease.token, manifest="m", total=batch.total, bytes=batch.total, matched=matched
            )
            batch.sealed, batch.unmatched = True, unmatched

    @rule(data=st.data(), name=st.sampled_from(DESTINATIONS), ahead=st.sampled_from([0, 0, 0, 0, -1, 1]))
    def confirm(self, data: st.DataObject, name: str, ahead: int) -> None:
        to = self.to[name]
        m = to.cursor + 1 + ahead
        batch = self.batches.get(m)
        total = batch.total if batch else 4
        first = data.draw(st.integers(0, total - 1))
        last = data.draw(st.integers(first, min(total, total - (data.draw(st.integers(0, 9)) > 0))))
        given = set(range(first, last + 1))
        nacked = data.draw(st.integers(0, len(given)))
        lease, fenced = self.lease(f"destinations.{name}", data)
        state = {"says": next(self.says)}
        past = m <= to.cursor
        repeat = past or given <= to.confirmed
        wrong = not past and (
            m != to.cursor + 1
            or batch is None
            or not batch.sealed
            or last >= total
            or (not repeat and bool(given & to.confirmed))
        )
        # What was delivered is taken whether the pipeline was stopped or not.
        with self.expecting(fenced=fenced, stopped=self.halted and not wrong, broken=wrong):
            counts = {"matched": len(given), "nacked": nacked}
            self.broker.deliveries.confirm(name, m, lease.token, [(first, last)], counts, state=state)
        if not fenced and not wrong and not repeat:
            to.confirmed |= given
            to.matched += len(given)
            to.nacked += nacked
            to.state = state
            if len(to.confirmed) == total:
                to.cursor, to.confirmed = m, set()

    @precondition(lambda self: self.status in ("running", "stopping"))
    @rule(names=st.sampled_from([DESTINATIONS, DESTINATIONS, ("x",), ("y",)]))
    def a_run_goes_well(self, names: tuple[str, ...]) -> None:
        """Whatever is there to do is done, so that the rarer rules meet a pipeline that has come far."""
        if self.unsealed is None and self.status == "running":
            self.open(2, 0)
        if self.unsealed is not None:
            self.stage(None)
            self.seal(None, set())
        for name in names:
            while (m := self.to[name].cursor + 1) in self.batches and self.batches[m].sealed:
                to, total = self.to[name], self.batches[m].total
                lease, _ = self.lease(f"destinations.{name}", None)
                for first, last in RangeSet.of((n, n) for n in to.confirmed).complement(total):
                    self.broker.deliveries.confirm(name, m, lease.token, [(first, last)], {"matched": last - first + 1})
                    to.matched += last - first + 1
                to.cursor, to.confirmed = m, set()

    @rule(data=st.data(), name=st.sampled_from(DESTINATIONS), back=st.integers(0, 3), votes=st.text("aan", max_size=6))
    def vote(self, data: st.DataObject, name: str, back: int, votes: str) -> None:
        to = self.to[name]
        m = to.cursor + 1
        lease, fenced = self.lease(f"destinations.{name}", data)
        following = to.window.next if to.voted_m == m else 0
        first = max(0, following - back)
        # The nack that tripped the window, voted once more, gets its answer again although everything is stopped; one
        # of a later micro-batch, where all of that was confirmed since, does not.
        again = not fenced and self.tripped.get(name) == m and votes[following - first :][:1] == "n"
        if again:
            got = self.vote_in_redis(name, m, lease, first, votes)
            assert got == following - first
            return
        with self.expecting(fenced=fenced, stopped=self.halted and name in self.tripped):
            got = self.vote_in_redis(name, m, lease, first, votes)
            to.window.next, to.voted_m = following, m
            assert got == to.window.vote(first, votes)
            if got is not None:
                if not self.halted:
                    self.status, self.error = "degraded", f"{name} {m}"
                self.tripped[name] = m

    def vote_in_redis(self, name: str, m: int, lease: Lease, first: int, votes: str) -> int | None:
        return self.broker.deliveries.vote(
            name, m, lease.token, first, runs(votes), size=SIZE, threshold=THRESHOLD, error=f"{name} {m}"
        )

    @rule(name=st.sampled_from(DESTINATIONS))
    def complete_unmatched(self, name: str) -> None:
        to, n = self.to[name], 0
        behind = self.batches.get(to.cursor + 1)
        looks = behind is not None and behind.sealed and name in behind.unmatched
        if not self.halted:
            while (b := self.batches.get(to.cursor + 1)) and b.sealed and name in b.unmatched:
                to.cursor, to.confirmed, n = to.cursor + 1, set(), n + 1
        node = f"destinations.{name}"
        while True:
            try:
                assert self.broker.deliveries.complete_unmatched(name) == n
                break
            except LeaseHeld:
                continue
        if looks and node in self.held:
            # It took the lease over, if only to find everything stopped.
            self.stale.setdefault(node, []).append(self.held.pop(node))

    @rule(ack_on=st.sampled_from(["delivered", "stored"]))
    def begin_ack(self, ack_on: str) -> None:
        limit = self.sealed if ack_on == "stored" else min(self.sealed, *(d.cursor for d in self.to.values()))
        if self.intent is None and limit > self.acked_m:
            last = self.batches[limit]
            self.intent = Ack(self.acked_m + 1, limit, {"file": last.start + last.total})
        assert self.broker.acks.begin("a", DESTINATIONS, ack_on) == self.intent

    @precondition(lambda self: self.intent is not None)
    @rule()
    def commit_ack(self) -> None:
        assert self.intent is not None
        self.broker.acks.commit("a", self.intent)
        self.given.append(self.intent.m_to)
        self.acked_m, self.acked = self.intent.m_to, self.intent.position["file"]
        self.intent = None

    @rule(crash=st.booleans())
    def collect(self, crash: bool) -> None:
        limit = min(self.sealed, self.acked_m, *(d.cursor for d in self.to.values()))
        expected = list(range(self.collected + 1, limit + 1))
        assert self.broker.collection.due(["a"], DESTINATIONS, 0) == expected
        for m in expected:
            self.broker.collection.begin(m)
            if crash:
                return
            self.broker.collection.end(m)
            del self.batches[m]
            self.collected = m

    @rule(n=st.integers(0, 9))
    def fail(self, n: int) -> None:
        if n < 6:
            return  # seldom, or nothing would ever get far
        first = self.broker.lifecycle.fail("sources.a", f"error {n}", "Test")
        if self.status == "stopped":
            return
        assert first == (self.error in (None, f"error {n}"))
        self.error = self.error or f"error {n}"
        self.status = "degraded"

    @rule(how=st.sampled_from(["not", "not", "graceful", "graceful", "force"]))
    def stop(self, how: str) -> None:
        if how == "not":
            return
        if how == "force":
            self.broker.lifecycle.force_stop()
            self.status = "stopped"
        else:
            self.broker.lifecycle.stop(60)
            self.status = {"running": "stopping", "degraded": "stopped"}.get(self.status, self.status)

    @rule()
    def drained(self) -> None:
        lowest = min(d.cursor for d in self.to.values())
        drained = self.unsealed is None and lowest == self.sealed and self.acked_m >= lowest
        if self.status == "stopping" and drained:
            self.status = "stopped"
        assert self.broker.lifecycle.stopped() == (self.status == "stopped")

    @rule()
    def start(self) -> None:
        self.broker.lifecycle.start()
        if self.halted and self.unsealed is not None:
            # what was staged is asked for again; whoever worked on it is fenced
            self.batches[self.unsealed].staged = None
            for node in ("sources.a", "seal"):
                if node in self.held:
                    self.stale.setdefault(node, []).append(self.held.pop(node))
        for name in self.tripped:
            self.to[name].window.last = []
        self.tripped = {}
        self.status, self.error = "running", None

    # What holds always

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "broker"):
            return
        status = self.broker.lifecycle.status()
        assert (status.status if status.status != "recovering" else "running") == self.status
        assert (status.error.error if status.error else None) == self.error
        assert self.broker.micro_batches.latest_sealed() == self.sealed
        unsealed = self.broker.micro_batches.unsealed()
        assert (unsealed.number if unsealed else None) == self.unsealed
        if unsealed:
            batch = self.batches[unsealed.number]
            stage = unsealed.stages.get("sources.a")
            assert (stage.manifest if stage else None) == batch.staged
            # indexes are consecutive for ever: with one partition they are the offsets
            assert stage is None or stage.first_index == (batch.start,)
        assert self.broker.positions.planned("a") == ({"file": self.planned} if self.planned else {})
        assert self.broker.positions.acked("a") == ({"file": self.acked} if self.acked else {})
        for name, to in self.to.items():
            state = self.broker.deliveries.get(name)
            assert state.cursor == to.cursor
            assert state.confirmed == RangeSet.of((n, n) for n in to.confirmed)
            assert (state.counters["matched"], state.counters["nacked"]) == (to.matched, to.nacked)
            assert state.state == to.state
            assert voted(self.broker, name) == (to.window.next if to.voted_m == to.cursor + 1 else 0)
        behind = range(min(d.cursor for d in self.to.values()) + 1, self.sealed + 1)
        assert self.broker.deliveries.backlog(DESTINATIONS).records == sum(self.batches[m].total for m in behind)

    @invariant()
    def acks_are_a_growing_prefix(self) -> None:
        if hasattr(self, "given"):
            assert self.given == sorted(set(self.given))


class Doubled:
    """Whether scripts are run twice now."""

    twice = False
