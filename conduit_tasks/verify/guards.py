"""Calls that the broker must refuse, tried on the current state of a history: every guard of a script is reached.

A guard that only a defect elsewhere would need is otherwise never reached, and its loss would go unnoticed. The calls
here play that defect: with a fencing token that is not the newest, with ranges that overlap, acks of records that are
not confirmed. Every such call must be refused with the right error and leave the state as it is, except leases, which
any call renews.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from conduit_tasks.broker import scripts
from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.collection import Collection
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.leases import Lease, Leases
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.broker.replay import Replays
from conduit_tasks.broker.shards import Shards
from conduit_tasks.errors import Fenced, InvariantBroken, LeaseHeld, PipelineStopped
from conduit_tasks.topology import Node
from conduit_tasks.verify.refused import Calls
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario_file import PIPELINE

Hook = tuple[Any, str, Callable[..., None] | None, Callable[..., None] | None]
"""A hook: class, method, function called before it, function called after it."""


FENCED: dict[str, tuple[type, str, int]] = {
    "claim": (Redrives, "claim", 1),
    "settle": (Redrives, "settle", 1),
    "unpark": (Redrives, "unpark", 1),
    "dispatch": (Redrives, "dispatch", 0),
    "replay_begin": (Replays, "begin", 2),
    "replay_confirm": (Replays, "confirm", 2),
    "divide": (Shards, "divide", 2),
    "together": (Shards, "together", 1),
    "confirm_shard": (Shards, "confirm", 2),
    "whole": (Shards, "whole", 2),
    "merge": (Shards, "merge", 2),
}
"""Calls of resends and of shards: what → part, method, place of the token among the arguments."""
AGAIN = 0.06
"""Probability that a call is tried once more, each time that it could be."""


def of_broker(hook: Callable[..., None], at: int = 0) -> Callable[..., None]:
    """Returns the hook with the whole broker in place of the part whose method is called, argument number `at`."""

    def call(*args: Any, **named: Any) -> None:
        hook(*args[:at], Broker.over(args[at]._access), *args[at + 1 :], **named)

    return call


class Guards:
    """The calls to refuse. `redis`: a client outside of the world; `resting`: returns whether nothing is tried now."""

    def __init__(self, seed: int, found: Found, redis: Any, resting: Callable[[], bool]) -> None:
        self.found, self.redis, self.resting = found, redis, resting
        self._random = Random(f"guards {seed}")
        self._tried: set[str] = set()
        self._calls = Calls(found, redis)

    def hooks(self) -> list[Hook]:
        """Returns the hooks of all calls: each is tried beside the call that it imitates, with the same arguments."""
        parts: list[Hook] = [
            (MicroBatches, "stage", self._staging, self._staged),
            (MicroBatches, "seal", self._sealing, self._sealed),
            (Deliveries, "confirm", self._confirming, self._confirmed),
            (Deliveries, "vote", None, self._voted),
            (Acks, "begin", self._acking, None),
            (Acks, "commit", self._acked, None),
            (Leases, "acquire", None, self._acquired),
            (Collection, "due", self._collecting, None),
            (Shards, "divide", None, self._divided),
            (Shards, "together", None, self._grouped),
        ]
        return [
            *(
                (part, name, before and of_broker(before), after and of_broker(after, 1))
                for part, name, before, after in parts
            ),
            (Lease, "release", self._releasing, None),
            *((part, name, partial(self._fenced, what, name, at), None) for what, (part, name, at) in FENCED.items()),
        ]

    def _staging(self, broker: Any, node: str, m: int, token: int, stage: Any, *more: Any, **named: Any) -> None:
        if self._due("stage fenced"):
            self._calls.refused(
                "stage with an old token", Fenced, lambda: broker.micro_batches.stage(node, m, 1, stage, *more)
            )
        if self._due("stage halted", broker, node, token):
            for status in ("degraded", "stopped"):
                with self._calls.being(status):
                    again = lambda: broker.micro_batches.stage(node, m, token, stage, *more, **named)  # noqa: E731
                    self._calls.refused(f"stage while the pipeline is {status}", PipelineStopped, again)

    def _staged(self, _: Any, broker: Any, node: str, m: int, token: int, stage: Any, *more: Any, **named: Any) -> None:
        """Checks invariant 3: the first stage is final."""
        if self._due("staged", broker, node, token):
            other = replace(stage, manifest=stage.manifest + ".other")
            self._calls.idle(
                "a second stage", lambda: broker.micro_batches.stage(node, m, token, other, *more, **named)
            )

    def _sealing(self, broker: Any, m: int, token: int, **named: Any) -> None:
        if self._due("seal fenced"):
            self._calls.refused("seal with an old token", Fenced, lambda: broker.micro_batches.seal(m, 1, **named))
        if self._due("seal halted", broker, "seal", token):
            with self._calls.being("degraded"):
                call = lambda: broker.micro_batches.seal(m, token, **named)  # noqa: E731
                self._calls.refused("seal while the pipeline is degraded", PipelineStopped, call)

    def _sealed(self, _: Any, broker: Any, m: int, token: int, **named: Any) -> None:
        """Checks invariant 6: a sealed micro-batch never changes."""
        if self._due("sealed", broker, "seal", token):
            named["manifest"] += ".other"
            named["total"] += 1
            self._calls.idle("a second seal", lambda: broker.micro_batches.seal(m, token, **named))
            # By a caller that looked before it was sealed.
            with patch.object(broker.access, "numbers", lambda *_: [m]):
                self._calls.idle("a restage of what is sealed", broker.micro_batches.drop_unsealed)

    def _confirming(self, broker: Any, destination: str, m: int, token: int, *more: Any, **named: Any) -> None:
        if self._due("confirm fenced"):
            call = lambda: broker.deliveries.confirm(destination, m, 1, *more, **named)  # noqa: E731
            self._calls.refused("confirm with an old token", Fenced, call)
        if self._due("confirm beyond", broker, Node.destination(destination), token) and not named.get("epoch"):
            sealed = broker.micro_batches.latest_sealed()
            call = lambda: broker.deliveries.confirm(destination, sealed + 1, token, *more, **named)  # noqa: E731
            self._calls.refused("confirm beyond what is sealed", InvariantBroken, call)

    def _confirmed(self, _: Any, broker: Any, destination: str, m: int, token: int, *more: Any, **named: Any) -> None:
        """Checks invariant 5: a micro-batch that is confirmed in part cannot be confirmed as a whole. If the pipeline
        was stopped, a confirm is refused, also when it is repeated."""
        if self._due("confirm halted", broker, Node.destination(destination), token):
            for status in ("degraded", "stopped"):
                with self._calls.being(status):
                    again = lambda: broker.deliveries.confirm(destination, m, token, *more, **named)  # noqa: E731
                    self._calls.refused(f"confirm while the pipeline is {status}", PipelineStopped, again)
        if named.get("epoch") or not self._holds(broker, Node.destination(destination), token):
            return
        if "overlap" in self._tried and self._random.random() >= AGAIN:
            return
        state, found = broker.deliveries.get(destination), broker.micro_batches.find(m)
        if state.cursor + 1 != m or found is None or not state.confirmed:
            return
        self._tried.add("overlap")
        whole = [(0, found.total - 1)]
        call = lambda: broker.deliveries.confirm(destination, m, token, whole, *more[1:], **named)  # noqa: E731
        self._calls.refused("confirm of what is confirmed in part", InvariantBroken, call)

    def _divided(self, division: Any, broker: Any, destination: str, m: int, token: int, **named: Any) -> None:
        """Checks that a division stands, whatever the file says by now (ADR 27)."""
        if division is not None and self._due("divided", broker, Node.destination(destination), token):
            other = {"by": "none", "count": division.count + 1, "matched": division.matched}
            self._calls.idle("a second division", lambda: broker.shards.divide(destination, m, token, **named | other))

    def _grouped(self, done: Any, broker: Any, destination: str, token: int, group: Any) -> None:
        """Checks that a group stands (ADR 41)."""
        if done and self._due("grouped", broker, Node.destination(destination), token):
            other = [replace(each, first=0, used=1, count=each.count + 1) for each in group if each.matched]
            self._calls.idle("a second group", lambda: broker.shards.together(destination, token, other[:1]))

    def _fenced(self, what: str, method: str, at: int, part: Any, *args: Any, **named: Any) -> None:
        if self._due(f"{what} fenced"):
            call = lambda: getattr(part, method)(*args[:at], 1, *args[at + 1 :], **named)  # noqa: E731
            self._calls.refused(f"{what} with an old token", Fenced, call)

    def _voted(self, tripped: Any, broker: Any, destination: str, m: int, token: int, *more: Any, **named: Any) -> None:
        """Checks C6: records that have voted never vote again."""
        own = Node.destination(destination) if destination else "seal"
        if tripped is None and self._due("vote", broker, own, token):
            self._calls.idle("a second vote", lambda: broker.deliveries.vote(destination, m, token, *more, **named))

    def _acking(
        self, broker: Any, source: str, destinations: Any, ack_on: str, token: int | None = None, **_: Any
    ) -> None:
        """Checks invariants 1 and 2: no ack before every destination has confirmed; an ack begins at the end of the
        last one."""
        ack = broker.access.hash(broker.keys.ack(source))
        if "to" in ack or token is None or not self._holds(broker, Node.ack(source), token):
            return
        first = int(ack.get("m", 0)) + 1
        sealed, *cursors = broker.deliveries.cursors(() if ack_on == "stored" else destinations)
        limit = min([sealed, *cursors])
        if limit < first or not self._due("ack"):
            return

        def begin(to: int, by: int) -> None:
            broker.access.run(
                scripts.BEGIN_ACK,
                {
                    "pipeline": broker.keys.pipeline,
                    "ack": broker.keys.ack(source),
                    "lease": broker.keys.lease(Node.ack(source)),
                    "intent": broker.keys.intent(source),
                    "cursors": [] if ack_on == "stored" else [broker.keys.destination(d) for d in destinations],
                },
                **{"from": first},
                to=to,
                token=by,
                position=["guards", '"nothing"'],
            )

        self._calls.refused(
            "an ack of what is not confirmed", InvariantBroken, lambda: begin(max(limit + 1, first), token)
        )
        if ack_on != "stored":
            for destination in (destinations[0], destinations[-1]):
                with self._calls.numbered("cursor", first - 1, f"destination:{destination}"):
                    what = f"an ack of what {destination} has not confirmed"
                    self._calls.refused(what, InvariantBroken, lambda: begin(limit, token))
        self._calls.refused("an ack begun with an old token", Fenced, lambda: begin(limit, 1))

    def _acked(self, broker: Any, source: str, ack: Any, token: int | None = None, *more: Any) -> None:
        if token is None or not self._due("acked"):
            return
        self._calls.refused("an ack committed with an old token", Fenced, lambda: broker.acks.commit(source, ack, 1))
        if self._holds(broker, Node.ack(source), token):
            other = replace(ack, m_to=ack.m_to + 1)
            call = lambda: broker.acks.commit(source, other, token)  # noqa: E731
            self._calls.refused("an ack committed that was not begun", InvariantBroken, call)

    def _acquired(self, lease: Any, broker: Any, node: str, owner: str, **_: Any) -> None:
        """Checks invariant 4: a lease is given once, unless Redis forgot it in the same moment."""
        if self._due("lease", broker, node, lease.token):
            self._calls.refused(
                f"the lease of {node}, which is held", LeaseHeld, lambda: broker.leases.acquire(node, "guards")
            )

    def _collecting(self, broker: Any, sources: Any, destinations: Any, *_: Any) -> None:
        """Checks invariant 6: no micro-batch is collected that somebody needs, or out of order, or whose collection was
        not begun."""
        sealed, *cursors = broker.deliveries.cursors(destinations)
        acked = [int(n or 0) for n in broker.access.read(*(("HGET", broker.keys.ack(s), "m") for s in sources))]
        collected, limit = broker.access.numbers("collected")[0], min([sealed, *cursors, *acked])
        if limit < sealed and limit >= collected and self._due("needed"):
            # As if everything before it were collected: so the guard for needed micro-batches is reached.
            with self._calls.numbered("collected", limit):
                needed = lambda: broker.collection.begin(limit + 1)  # noqa: E731
                self._calls.refused("the collection of what somebody needs", InvariantBroken, needed)
        if sealed > collected + 1 and self._due("out of order"):
            self._calls.refused(
                "a collection out of order", InvariantBroken, lambda: broker.collection.begin(collected + 2)
            )
        found = broker.micro_batches.find(collected + 1)
        if found is not None and found.state != "collecting" and self._due("not begun"):
            end = lambda: broker.collection.end(collected + 1)  # noqa: E731
            self._calls.refused("the end of a collection that was not begun", InvariantBroken, end)

    def _releasing(self, lease: Any, expect_sealed: int | None = None, **_: Any) -> None:
        """Checks that no micro-batch is left behind: a holder that does not know of the newest one keeps its lease."""
        broker = Broker.over(lease._access)
        sealed = broker.access.numbers("sealed")[0]
        if expect_sealed is None or not sealed or not self._due("release", broker, lease.node, lease.token):
            return
        if lease.release(expect_sealed=sealed - 1) or not self._holds(broker, lease.node, lease.token):
            self.found.broken(f"{lease.node} gives its lease up though micro-batch {sealed} was sealed meanwhile")

    def _due(self, what: str, *holder: Any) -> bool:
        """Returns whether to try it: the first time in a history that `holder` (broker, node, token) has its lease, and
        now and then after."""
        if self.resting() or (what in self._tried and self._random.random() >= AGAIN):
            return False
        if holder and not self._holds(*holder):
            return False
        # While the state is rebuilt, every call is refused for that reason first.
        if self.redis.hexists(f"{{conduit:{PIPELINE}}}:pipeline", "rebuilding"):
            return False
        self._tried.add(what)
        return True

    def _holds(self, broker: Any, node: str, token: int) -> bool:
        held = broker.access.hash(broker.keys.lease(node))
        speaks = str(token) in (held.get("token"), held.get("attempt"))
        return speaks and bool(held.get("owner")) and self._runs(broker)

    def _runs(self, broker: Any) -> bool:
        return not self.resting() and broker.access.hash(broker.keys.pipeline).get("status") in ("running", "stopping")
