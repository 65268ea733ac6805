"""Resends (theme `resend`): an operator redrives dead letters and replays intervals while everything breaks.

Each call is a process of its own, under the same faults as a run. What a replay was to send on purpose is noted, so
that its repetitions count in the bound, and so that none of them is left out (`Resent`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.resend.prepare import Prepared, spool_of
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.resend.replay import TURN, replay
from conduit_tasks.verify import deadly
from conduit_tasks.verify.outside import Event
from conduit_tasks.verify.scenario_file import PIPELINE

if TYPE_CHECKING:
    from conduit_tasks.verify.actor import Actor
    from conduit_tasks.verify.history import History

EVERY = (0.5, 4.0)
"""Seconds between two resends, if there is something to send."""
MOST = 8
"""Limit of resends under faults."""
WAIT = 20.0
"""Seconds that a resend waits for a lease."""
PEACE = 5
"""Limit of redrives without faults within which every letter that can be delivered must be."""


@dataclass
class Ask:
    """A replay that was called, maybe more than once. `start`: number of its first event; `ended`: whether its last
    call did all of it."""

    run: str
    start: int
    what: str
    destinations: tuple[str, ...]
    ended: bool = False


class Resent:
    """Rows that replays of `all` were to send, per destination: (run, token of what was prepared) → rows of each event.

    `whole`: those that ended well; `apart`: destinations that were sent an interval which does not begin with the
    first event, so that later events may have come first."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[tuple[str, str], Counter[Event]]] = defaultdict(dict)
        self.whole: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.apart: set[str] = set()

    def most(self, destination: str) -> Counter[Event]:
        """Returns how often each event may have come once more."""
        return sum(self.sent[destination].values(), Counter[Event]())

    def least(self, destination: str) -> Counter[Event]:
        """Returns how often each event must have come once more."""
        sent = self.sent[destination]
        return sum((sent[each] for each in self.whole[destination]), Counter[Event]())


class Resends:
    """The resends of one history."""

    def __init__(self, history: History) -> None:
        self.history, self.world, self.found = history, history.world, history.found
        self.scenario, self.outside = history.scenario, history.outside
        self.random = Random(f"resends {history.scenario.seed}")
        self.resent = Resent()
        self._asks: list[Ask] = []
        self._count = 0
        self._fixed = False
        self._next = 0.0

    # -- under faults -------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Returns whether more are to come, or one is under way."""
        return self.scenario.resends and (self._count < MOST or bool(self._under_way()))

    def _under_way(self) -> int:
        return sum(task in ("redrive", "replay") for _, task, _ in self.history.tasks)

    def goes_on(self) -> None:
        """Sends something again now and then, two at a time at most; sooner or later the cause is fixed before."""
        if not self.scenario.resends:
            return
        random = self.random
        if self._count >= MOST or self._under_way() > 1 or self.world.now < self._next or not self._waits():
            return
        self._next = self.world.now + random.uniform(*EVERY)
        if not self._fixed and random.random() < 0.6:
            self.fix()
        # Records that wait behind a dead letter are in no order with what a replay sends, if that fails again.
        if random.random() < self.scenario.replays and (self._fixed or not self.scenario.parks):
            self._start("replay", partial(self._replay, self._drawn()))
        else:
            self._start("redrive", partial(self._redrive, self._selection()))

    def fix(self) -> None:
        """Fixes the causes: the receiver refuses nothing any more, and processors fail nothing that can be repaired."""
        self._fixed = True
        self.world.said("the operator fixes what fails records")
        self.scenario.memory.refused = frozenset()
        deadly.stubborn = False

    def _waits(self) -> bool:
        broker = self.history.operator.broker
        return any(broker.dead_letters.count(d) or broker.redrives.parked(d) for d in ("", *self.scenario.destinations))

    def _selection(self) -> Selection:
        random = self.random
        if random.random() < 0.5:
            return Selection()
        if random.random() < 0.6:
            return Selection(keys=(str(random.randrange(4)),))
        return Selection(destination=random.choice([BEFORE_FAN_OUT, *self.scenario.destinations]))

    def _drawn(self) -> Ask:
        random = self.random
        if self._asks and random.random() < 0.4:
            return random.choice(self._asks)
        what, all_of = random.choice(["missing", "failed", "all", "all"]), self.scenario.destinations
        start = random.choice([0, 0, random.randrange(8)])
        chosen = tuple(sorted(random.sample(all_of, random.randint(1, len(all_of)))))
        self._asks.append(Ask(f"again-{len(self._asks) + 1}", start, what, chosen))
        return self._asks[-1]

    def _start(self, kind: str, function: Callable[[], Any]) -> Actor:
        self._count += 1
        name = f"resend-{self._count}/{kind}"
        self.world.said(f"{name} begins")
        return self.history.attempt(name, function)

    def _redrive(self, chosen: Selection) -> int:
        """Returns the number of letters and parked records that were sent and have arrived."""
        with opened(PIPELINE, "redrive") as context:
            outcomes = redrive(context, chosen, "the operator", wait=WAIT)
        return sum(each.redriven + each.released for each in outcomes if each.destination != BEFORE_FAN_OUT)

    def _replay(self, ask: Ask) -> int:
        """Returns the number of records that were sent and have arrived."""
        ask.ended = False
        made: list[tuple[str, str]] = []

        def note(prepared: Prepared) -> None:
            made.append((ask.run, prepared.token))
            if ask.what == "all":
                with self.world.watching():
                    self._noted(ask, prepared)

        outcomes = replay(
            PIPELINE, f"{ask.start}.0", "1e6", ask.destinations, ask.what, run=ask.run, wait=WAIT, progress=note
        )
        ask.ended = True
        for destination in ask.destinations if ask.what == "all" else ():
            self.resent.whole[destination].update(made)
        return sum(each.delivered for each in outcomes)

    def _noted(self, ask: Ask, prepared: Prepared) -> None:
        rows: Counter[Event] = Counter()
        with opened(PIPELINE, ask.run) as context:
            for portion in prepared.portions:
                for batch in spool_of(context, ask.run).read(portion.file, SPOOL_SCHEMA.names):
                    for record in to_records(batch, portion.origins):
                        event = self.outside.event(record.origin.connector, record.position)
                        assert event is not None, f"a replay of {record.position!r}, where nothing begins"
                        rows[event] += 1
        events = self.scenario.events
        for id in ask.destinations:
            sent = {e: n for e, n in rows.items() if self.scenario.at(id, events[e[0]][e[1]]) == "delivered"}
            self.resent.sent[id][ask.run, prepared.token] = Counter(sent)
            if ask.start:
                self.resent.apart.add(id)

    # -- without faults -----------------------------------------------------------------------------------------

    def in_peace(self) -> None:
        """Goes on with replays that were cut off, and redrives everything: each letter that can be delivered must be,
        and nothing is sent after that."""
        if not self.scenario.resends:
            return
        self.fix()
        began = self.world.now + TURN
        self.scenario.memory.busy = self.scenario.memory.lossy = 0.0
        # Replays that were cut off keep their place before others so long.
        self.world.now += TURN
        for ask in self._asks:
            if not ask.ended:
                self._whole("replay", partial(self._replay, ask), began)
        for _ in range(PEACE):
            if not self._whole("redrive", partial(self._redrive, Selection()), began):
                break
        else:
            self.found.broken(f"{PEACE} redrives without faults each send something again")
        missing = Ask("missing", 0, "missing", tuple(self.scenario.destinations))
        if count := self._whole("replay", partial(self._replay, missing), began):
            self.found.broken(f"a replay sends {count} records as missing, and none is")

    def _whole(self, kind: str, function: Callable[[], int], began: float) -> int:
        """Runs one to its end. Returns what it sent; 0 if it has failed."""
        history = self.history
        history.operator.fix()
        actor = self._start(kind, function)
        if not history.ended_by(began):
            return 0
        # A Redis that has lost everything does not know any more what is missing.
        if actor.error is not None and not (self.world.forgotten and isinstance(actor.error, ConfigError)):
            self.found.broken(f"{actor.name} fails though nothing breaks: {type(actor.error).__name__}: {actor.error}")
            return 0
        return int(actor.answer or 0)
