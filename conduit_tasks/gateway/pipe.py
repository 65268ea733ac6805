"""A pipe's receiver at ingest (SEMANTICS O5–O6r): per CloudEvents `source` and key, `sequence` decides what passes.

The receivers are those of `conduit_tasks.pipes`. Their state is in Redis and changes in the same call that stores the
events, provided that it is still the state on which the decision was made: several gateways may serve one source, and
no crash can come between the two. The queue of a continuous receiver is the requests that wait for their answer: none
of them was confirmed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.event import head, join, split
from conduit_tasks.gateway.store import CROWDED, FORGETFUL, MOVED, REPEATED, REPLAYED, Budget, IngestStore
from conduit_tasks.gateway.verify import Mark
from conduit_tasks.pipes.base import Message, Receiver
from conduit_tasks.record.cloudevents import PREFIX

WITHHELD = "withheld"
"""Answer in place of an id: not the next of its lane, so neither stored nor refused."""
LANES = 2_000
"""Lanes that one call changes at most: Redis checks each, and does nothing else meanwhile."""
NAME = 96
"""Characters at most of a lane's name."""
_REFUSED = (None, CROWDED, REPLAYED, FORGETFUL)
STEPS = 1_000
"""Calls at most in which a group is stored; each after the first because another gateway was quicker."""
_SOURCE, _SEQUENCE, _TYPE = PREFIX + "source", PREFIX + "sequence", PREFIX + "sequencetype"


def place(event: bytes, key: str) -> tuple[str, int]:
    """Returns the lane of a packed event, and its number in it. Raises BadEvent if it has none."""
    metadata = head(event)
    text = metadata.get(_SEQUENCE, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        said = f"is '{text[:20]}', not" if text else "is missing; it is"
        raise BadEvent(
            f"attribute 'sequence' {said} a whole number in digits, which this source's pipe asks for", "sequence"
        )
    if metadata.get(_TYPE, "Integer") != "Integer":
        raise BadEvent("attribute 'sequencetype' is not Integer, the only one that has an order here", "sequencetype")
    # A URI has no blank, so source and key stay distinct.
    lane = f"{metadata.get(_SOURCE, '')} {metadata.get(PREFIX + key, '')}"
    # Redis keeps the names: a long one as its hash, which has no blank and so equals no other name.
    return lane if len(lane) <= NAME else hashlib.sha256(lane.encode()).hexdigest(), int(text)


@dataclass
class _Group:
    """A group on its way, with the answer to each request so far."""

    number: int
    events: list[list[bytes]]
    answers: list[str | None]
    open: list[int]
    step: int = 0


@dataclass
class _Call:
    """Content of one call: requests in the order in which they pass, the events of each that pass, and the moves (state
    before and after) of its lanes. `after`: lane → state after the call."""

    requests: list[int] = field(default_factory=list)
    passing: list[list[bytes]] = field(default_factory=list)
    moves: list[list[tuple[str, str, str]]] = field(default_factory=list)
    after: dict[str, str] = field(default_factory=dict)


class PipedStore:
    """An `IngestStore` behind a receiver per lane. A request passes whole or waits whole.

    `key`: the attribute that makes a lane, together with `source`. Answer per request: the id of the last event stored,
    "" if all its events had passed before, None if the backlog is full, WITHHELD if an earlier number is missing,
    CROWDED if it would need one lane too many, REPLAYED and FORGETFUL as there. `lanes`, `remembered`: see
    `IngestStore.add`.
    """

    def __init__(
        self,
        store: IngestStore,
        receiver: Callable[[], Receiver],
        key: str,
        lanes: tuple[int, float],
        *,
        wait_fsync: bool = False,
        remembered: tuple[int, float] = (0, 0.0),
    ) -> None:
        self.store, self._receiver, self._key, self._lanes, self._wait = store, receiver, key, lanes, wait_fsync
        self._remembered = remembered
        self._known: dict[str, str] = {}
        """Lane → state that this gateway saw last."""
        self._group: _Group | None = None

    def add(
        self,
        gateway: str,
        group: int,
        counts: Sequence[int],
        chunks: Sequence[bytes],
        budget: Budget,
        *,
        marks: Sequence[Sequence[Mark]] = (),
    ) -> list[str | None]:
        """Stores requests as `IngestStore.add` stores chunks; each chunk is one request."""
        if self._group is None or self._group.number != group:
            events = [split(chunk) for chunk in chunks]
            self._group = _Group(group, events, [WITHHELD] * len(chunks), list(range(len(chunks))))
            self._known.clear()
        work = self._group
        # A call whose answer was lost is repeated unchanged: `work` and `_known` change only with an answer.
        while call := self._decide(work):
            ids = self.store.add(
                gateway,
                group * STEPS + work.step,
                [len(events) for events in call.passing],
                [join(events) for events in call.passing],
                budget,
                marks=[marks[n] for n in call.requests] if marks else (),
                wait_fsync=self._wait,
                moves=call.moves,
                lanes=self._lanes,
                remembered=self._remembered,
            )
            work.step += 1
            for request, id, passed in zip(call.requests, ids, call.passing):
                if id != MOVED:
                    work.answers[request] = id if passed or id in _REFUSED else REPEATED
                    work.open.remove(request)
            if not {*_REFUSED, MOVED, REPEATED}.intersection(ids):
                self._known |= call.after
                break
            self._known.clear()
            if work.step >= STEPS:
                break
        return work.answers

    def _decide(self, work: _Group) -> _Call | None:
        """Returns the call with the open requests that pass now; None if none does.

        A request that has to wait is tried again after the others, which may hold the events that it waits for.
        """
        self._learn({place(e, self._key)[0] for n in work.open for e in work.events[n]})
        call = _Call(after=dict(self._known))
        left, waiting = list(work.open), []
        while left:
            for n in left:
                moves = self._pass(work.events[n], call)
                if moves is None:
                    waiting.append(n)
                else:
                    call.requests.append(n)
                    call.moves.append(moves)
            if len(waiting) == len(left):
                break
            left, waiting = waiting, []
        return call if call.requests else None

    def _pass(self, events: list[bytes], call: _Call) -> list[tuple[str, str, str]] | None:
        """Adds the events of a request that pass to the call and returns the moves of their lanes; None if one of the
        events is not the next."""
        passing, receivers = [], {}
        for event in events:
            lane, number = place(event, self._key)
            if lane not in receivers:
                receivers[lane] = self._receiver()
                if call.after.get(lane):
                    receivers[lane].restore(orjson.loads(call.after[lane]))
            reaction = receivers[lane].receive(Message(number))
            if not reaction.confirm:
                return None
            if reaction.deliver:
                passing.append(event)
        moves = [
            (lane, call.after.get(lane, ""), orjson.dumps(receiver.snapshot(), option=orjson.OPT_SORT_KEYS).decode())
            for lane, receiver in receivers.items()
        ]
        call.passing.append(passing)
        call.after |= {lane: after for lane, _, after in moves}
        return moves

    def _learn(self, lanes: set[str]) -> None:
        unknown = sorted(lanes - self._known.keys())
        if unknown:
            self._known |= zip(unknown, self.store.lanes(unknown))
