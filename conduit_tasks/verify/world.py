"""The simulated world: at each operation on Redis or files a seed has the process go on, die, stand still or send
twice, or cuts the power, on a clock of the world's own.

Every task of a run is an *actor*: a thread that runs the product's own code and hands over at its *points*, the
operations on Redis and on files. Only one actor moves at a time and every choice comes from one seeded generator, so
the same seed gives the same history. A dead actor's points do nothing any more, so that its `finally` blocks have no
effect, as after a SIGKILL.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from conduit_tasks.verify.actor import FATES, Actor, Aim, Beat, Crash, Rates, Stuck
from conduit_tasks.verify.scheduler import Scheduler

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""Start of the clock: any second of the past, always the same."""
TICK = 0.002
"""Seconds that an operation takes."""
HISTORY = 400
"""Points that are remembered for a report."""
LONG = (8.0, 12.0)
"""Seconds of a long pause: longer than any lease, and not so long that everything is over."""
POINTS = 200_000
"""Limit of points, more than any history takes: one that goes on longer hangs."""


class World(Scheduler):
    """The clock, the actors and the faults.

    `faults`: what was done to whom, in order; `history`: the last operations, or all of them (`trace`); `digest`: of
    all of them; `forgotten`: number of times that Redis went back to an earlier state.
    """

    def __init__(self, seed: int, rates: Rates, budget: int, aims: Sequence[Aim] = (), *, trace: bool = False) -> None:
        super().__init__(random.Random(seed))
        self.seed = seed
        self.rates, self.budget, self._aims = rates, budget, aims
        # Half of it is for deliveries and acks: otherwise most histories would be over before anything was delivered.
        self._kept = budget // 2
        self.machine_ahead = self.redis_ahead = 0.0
        self.redis_full = False
        self.forgotten = 0
        self.faults: list[str] = []
        self.history: deque[str] = deque(maxlen=POINTS if trace else HISTORY)
        self.digest = hashlib.blake2b(digest_size=8)
        self.on_forget: Callable[[], None] = lambda: None
        self.on_tick: Callable[[], None] | None = None
        self.on_mishap: Callable[[str], None] = lambda name: None
        self.beats = False
        """Whether threads that keep something beside the work run, too."""

    @property
    def wall(self) -> float:
        """Seconds since the epoch, by the machine's clock."""
        return EPOCH + self.now + self.machine_ahead

    @property
    def redis_time(self) -> tuple[int, int]:
        """Seconds and microseconds, by Redis' clock."""
        now = self.now + self.redis_ahead
        return int(EPOCH + now), int(now % 1 * 1e6)

    # -- seen from an actor -------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The actor that is calling; None outside of actors, and while faults are switched off."""
        here = self._here
        return None if here.off else here.actor

    @property
    def beside(self) -> bool:
        """Returns whether the caller is an observer inside an actor, which stands still meanwhile."""
        return self._here.actor is not None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Switches faults and points off in the block, for observers."""
        self._here.off += 1
        try:
            yield
        finally:
            self._here.off -= 1

    def call(
        self,
        what: str,
        operation: Callable[[], T],
        *,
        changes: bool = True,
        repeatable: bool = False,
        torn: Callable[[], Any] | None = None,
    ) -> T:
        """Does one operation, with its fate. `torn`: does half of the operation, before a crash."""
        here = self._here
        actor = here.actor
        if actor is None or here.off:
            return operation()
        if actor.dead:
            raise Crash(actor.name)
        if actor.beats:
            self._beat(actor)
        self.points += 1
        if self.points > POINTS:
            raise Stuck(f"{what} is point {POINTS:,}: this history does not end")
        self.now += TICK
        self.lived(f"{actor.name}: {what}")
        fate = self._aimed(actor, what) or self._fate(actor, changes, repeatable)
        answer = operation() if fate == "go" else self._meets(actor, fate, what, operation, torn)
        if self.on_tick is not None:
            with self.watching():
                self.on_tick()
        return answer

    def _meets(
        self, actor: Actor, fate: str, what: str, operation: Callable[[], T], torn: Callable[[], Any] | None
    ) -> T:
        """Does an operation whose fate is not just to go on."""
        if fate in {"switch", "pause", "short pause"}:
            most = {"switch": (0.0, 0.0), "pause": (1.0, 40.0), "short pause": (1.5, 3.0)}
            self._yield(actor, self.random.uniform(*most[fate]), what)
        elif fate == "long pause":
            self._yield(actor, self.random.uniform(*LONG), what)
        elif fate == "before":
            if torn is not None and self.random.random() < 0.5:
                torn()
            self._die(actor, f"before {what}")
        elif fate == "power":
            self._power(f"before {what}")
        answer = operation()
        if fate == "double":
            self._note(f"{actor.name}: {what} is sent twice")
            answer = operation()
        elif fate == "after":
            self._die(actor, f"after {what}")
        elif fate == "forget":
            self._note(f"Redis forgets what it did since its last fsync, after {actor.name}: {what}")
            with self.watching():
                self.on_forget()
        elif fate not in FATES:
            with self.watching():
                self.on_mishap(fate)
        return answer

    def sleep(self, seconds: float) -> None:
        """Waits while others move on; outside of actors time just passes."""
        self.check()
        actor = self._here.actor
        # A wait that is too short for the clock's float would never end.
        seconds = max(seconds, 1e-5)
        if actor is None:
            self.now += seconds
        else:
            self._pass(actor, seconds)

    def _pass(self, actor: Actor, seconds: float) -> None:
        until = self.now + seconds
        while not actor.beating and actor.beats and (due := min(beat.due for beat in actor.beats)) < until:
            self._wait(actor, max(due - self.now, 0.0))
            self._beat(actor)
            seconds = max(until - self.now, 0.0)
        self._wait(actor, seconds)

    @contextmanager
    def beside_it(self, name: str, seconds: float, call: Callable[[], bool]) -> Iterator[None]:
        """Makes a call every `seconds`, in place of a thread of this name: between two operations of its process, and
        while that process waits; not while it stands still."""
        actor = self.actor
        if actor is None:
            yield
            return
        actor.beats.append(beat := Beat(self.now + seconds, seconds, call))
        try:
            yield
        finally:
            if beat in actor.beats:
                actor.beats.remove(beat)

    def rings(self) -> None:
        """Wakes the actors that are blocked."""
        for actor in self.actors:
            if actor.blocked:
                actor.wake = min(actor.wake, self.now)

    def blocks(self, seconds: float) -> None:
        """Waits until `rings` is called, or the next beat is due; `seconds` at most."""
        actor = self._here.actor
        actor.blocked = True
        try:
            self._wait(actor, max(min([seconds, *(beat.due - self.now for beat in actor.beats)]), 1e-5))
        finally:
            actor.blocked = False
        self._beat(actor)

    def _beat(self, actor: Actor) -> None:
        if not actor.beats or actor.beating:
            return
        actor.beating = True
        try:
            for beat in [beat for beat in actor.beats if beat.due <= self.now]:
                beat.due = self.now + beat.every
                if not beat.call():
                    actor.beats.remove(beat)
        finally:
            actor.beating = False

    def die(self, why: str) -> None:
        """Ends the process that calls it."""
        actor = self._here.actor
        if actor is not None:
            self._die(actor, why)

    def revive(self) -> None:
        """Revives the calling process: only a child of it has died."""
        self._here.actor.dead = False

    def _aimed(self, actor: Actor, what: str) -> str:
        if not self._aims:
            return ""
        hits = [aim.fate for aim in self._aims if aim.hit(actor.name, what)]
        return hits[0] if hits and not self.calm else ""

    def said(self, text: str) -> None:
        """Notes what happened to the world, for readers of the faults."""
        self._note(text)

    def _fate(self, actor: Actor, changes: bool, repeatable: bool) -> str:
        if self.calm:
            return "go"
        rates, weight = self.rates, 1.0 if changes else 0.1
        at = self.random.random() / weight
        for fate, rate in (
            ("switch", rates.switch),
            ("before", rates.crash),
            ("after", rates.crash),
            ("power", rates.power),
            ("pause", rates.pause),
            ("double", rates.double),
            ("forget", rates.forget),
        ):
            if at < rate:
                if fate == "switch":
                    return fate
                late = any(part in actor.name for part in ("/destinations.", "/acks.", "resend"))
                if self.budget <= (0 if late else self._kept) or (fate == "double" and not repeatable):
                    return "go"
                self.budget -= fate != "double"
                return fate
            at -= rate
        return "go"

    def _die(self, actor: Actor, why: str) -> None:
        self._note(f"{actor.name} dies {why}")
        actor.dead = True
        raise Crash(actor.name)

    def _power(self, why: str) -> None:
        self._note(f"the machine loses power {why}")
        self.lost_power = True
        for actor in self.actors:
            actor.dead = True
        raise Crash("power")

    def _yield(self, actor: Actor, seconds: float, what: str) -> None:
        if seconds:
            self._note(f"{actor.name} stands still for {seconds:.1f} s before {what}")
            actor.left = True
        self._wait(actor, seconds)

    def _note(self, text: str) -> None:
        self.faults.append(f"{self.now - 1_000.0:8.3f}  {text}")
        self.lived(f"*** {text}")

    def lived(self, text: str) -> None:
        """Keeps a line of the history; all lines go into its digest."""
        line = f"{self.now - 1_000.0:8.3f}  {text}"
        self.digest.update(line.encode())
        self.history.append(line)
