"""Turns of the actors of a `World`: one moves at a time, as its generator draws, and time passes if all sleep."""

from __future__ import annotations

import gc
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

from conduit_tasks.verify.actor import Actor, Crash, Signal

SWEEP = 5_000
"""Points between two collections of garbage."""
STUCK = 180.0
"""Seconds, of the machine, within which a process that moves comes to its next point."""
FAIR = 0.5
"""Seconds that an actor that can move waits for the others at most, or little longer, while there are no faults."""


class Here(threading.local):
    """Who is calling: the actor whose thread it is, and how often its faults are switched off."""

    actor: Any = None
    """An `Actor`; None outside of actors."""
    off = 0


class Scheduler:
    """The actors, and the clock that their waits are counted by."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        # Counted from a small number: a float of this size tells microseconds apart.
        self.now = 1_000.0
        self.points = 0
        self.actors: list[Actor] = []
        self.lost_power = False
        self.calm = False
        self.on_power: Callable[[], None] = lambda: None
        self._here = Here()
        self._scheduler = Signal()
        self._sweep = SWEEP
        self._ghost = Actor("a dead process", lambda: None, dead=True)
        self._stuck: Actor | None = None

    # -- seen from an actor

    def check(self) -> None:
        """Raises Crash if the calling actor is dead."""
        actor = self._here.actor
        if actor is not None and actor.dead:
            raise Crash(actor.name)

    def _wait(self, actor: Actor, seconds: float) -> None:
        actor.wake = self.now + seconds
        self._scheduler.release()
        actor.turn.acquire()
        self.check()

    # -- seen from the scheduler

    def start(self, name: str, function: Callable[[], Any], left: bool = False) -> Actor:
        """Starts a new process, which moves when its turn comes."""
        actor = Actor(name, function, wake=self.now, left=left)
        self.actors.append(actor)
        threading.Thread(target=self._run, args=(actor,), name=name, daemon=True).start()
        return actor

    def _run(self, actor: Actor) -> None:
        actor.turn.acquire()
        self._here.actor = actor
        try:
            self.check()
            actor.answer = actor.function()
        except BaseException as error:  # noqa: BLE001 - kept for whoever looks at the actor
            # Frees what the actor held here and now, in its own name, as any process that ends does.
            traceback.clear_frames(error.__traceback__)
            actor.error = Crash(actor.name) if actor.dead else error
        finally:
            actor.ended = True
            self._scheduler.release()

    def step(self) -> bool:
        """Lets one actor move until it hands over; time passes if all sleep. Returns False if there is none left."""
        self.actors = [a for a in self.actors if not a.ended]
        if not self.actors:
            return False
        dead = [a for a in self.actors if a.dead]
        ready = dead or [a for a in self.actors if a.wake <= self.now]
        if not ready:
            self.now = min(a.wake for a in self.actors)
            ready = [a for a in self.actors if a.wake <= self.now]
        self._move(self.random.choice(self._first(ready)))
        if self.lost_power:
            self._start_again()
        if self.points >= self._sweep:
            self._sweep = self.points + SWEEP
            self.sweep()
        return True

    def _first(self, ready: list[Actor]) -> list[Actor]:
        """Returns those of the ready actors of which one moves: if there are no faults, those that have waited for
        long, as a machine lets every process move that can. An actor may do hundreds of operations before it waits."""
        late = [actor for actor in ready if self.calm and self.now - actor.wake > FAIR]
        return late or ready

    def _move(self, actor: Actor) -> None:
        actor.turn.release()
        try:
            self._scheduler.acquire(timeout=STUCK)
        except Empty:
            self._stuck = actor
            raise RuntimeError(
                f"{actor.name} has not come to its next point within {STUCK:g} s: it waits for something that is not "
                "the world's, such as a lock that it holds itself"
            ) from None

    def _start_again(self) -> None:
        """Ends every process at the moment of the power cut, before anybody starts another one, and starts the
        machine."""
        for actor in self.actors:
            while not actor.ended:
                self._move(actor)
        self.lost_power = False
        self.actors = []
        self.now += 5.0
        self.on_power()

    @contextmanager
    def tidy(self) -> Iterator[None]:
        """Leaves garbage collection to `sweep` in the block, and runs it at the end: the interpreter would collect at
        any moment, as whichever actor moves then."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            self.sweep()
            if enabled:
                gc.enable()

    def sweep(self) -> None:
        """Collects garbage as a dead process: its files and coroutines do nothing any more."""
        self._here.actor = self._ghost
        try:
            gc.collect()
        finally:
            self._here.actor = None

    def end(self) -> None:
        """Ends every actor that is left, if all can move."""
        if self._stuck is not None:
            return
        for actor in self.actors:
            actor.dead = True
        while self.step():
            pass
