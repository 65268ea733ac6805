"""Runs that last (theme `handover`): started as Airflow does, with checks of the handover from one to the next.

The next run begins by time while the one before is at work (`airflow/schedule.py`): after half of the time that a run
lasts, if that is short. At most two are active (`max_active_runs`); if none is, one begins at once, as it is requested
by the acks or by the trigger that sees that nobody is at work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from conduit_tasks.micro_batch import course
from conduit_tasks.topology import Node
from conduit_tasks.verify.tasks import Run, gives_way

if TYPE_CHECKING:
    from conduit_tasks.verify.actor import Actor
    from conduit_tasks.verify.history import History

TAKES_OVER = re.compile(r"run (\S+) takes over")
EVERY = 0.3
"""Seconds between two chances of new events at the sources; some come about once a second."""
STARTS = 1.5
"""Seconds that a node takes to be ready, at most."""
PATIENCE = 15.0
"""Seconds from the beginning of the next run within which a run must have ended if there are no faults: twice what the
slowest delivery takes."""
GONE = 20.0
"""Seconds after which nobody takes a killed process to be at work any more."""


class Lasting:
    """Plays the schedule of one history, and checks its handovers. `count`: nodes that were taken over from."""

    def __init__(self, history: History) -> None:
        self.history, self.world, self.found = history, history.world, history.found
        self.seconds = history.scenario.lasts
        self.random = Random(f"lasting {history.scenario.seed}")
        self.count = 0
        self._next = self._grows = 0.0
        self._ready: dict[tuple[str, str], float] = {}
        self._runs: dict[str, Run] = {}
        self._over: dict[tuple[str, str], tuple[float, str]] = {}
        """(run, node) that ended in good order at its first try → when, and why."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Notes when nodes report that they are ready."""
        from conduit_tasks.broker.runs import Runs

        ready = Runs.tell_ready

        def tell_ready(broker: Any, run: str, node: str) -> None:
            # Before the call: another may have acted on it by the time the answer comes.
            self._ready.setdefault((run, node), self.world.now)
            ready(broker, run, node)

        with patch.object(Runs, "tell_ready", tell_ready):
            yield

    def goes_on(self) -> None:
        """Plays everything outside the pipeline: events come, an operator acts, and the next run begins in its time."""
        history, now = self.history, self.world.now
        if now >= self._grows:
            self._grows = now + EVERY
            if self.random.random() < EVERY:
                history.scenario.grow(history.home, self.random, history.queues.send, most=2)
            if not self.world.calm and self.random.random() < 0.02:
                history.operator.operate(self.random)
        if not history.under_way or (len(history.under_way) < 2 and now >= self._next):
            if self.world.calm or self.random.random() < 0.5:
                history.operator.fix()
            self._begin()

    def _begin(self) -> Run:
        history, now = self.history, self.world.now
        history.runs += 1
        starts = self.random.uniform(0.0, STARTS)
        run = Run(history.pipeline, f"run-{history.runs}", self.seconds, starts=starts, began=now)
        self._next = now + self.seconds / 2
        self._runs[run.id] = run
        history.under_way.append(run)
        return run

    def ended(self, run: Run, task: str, actor: Actor) -> None:
        """Notes that a task has ended, and checks its handover."""
        said = str(actor.answer)
        if actor.error is None and run.tries[task] == 1:
            self._over[run.id, task] = (self.world.now, said)
        if actor.error is None and (found := TAKES_OVER.search(said)):
            self.count += 1
            after = found[1]
            late = self.world.now - self._runs[after].began > course.TAKES_OVER
            if not late and (after, task) not in self._ready:
                self.found.broken(f"{actor.name} hands over to {after} before that is ready")

    def in_peace(self) -> bool:
        """Starts two runs without faults, one after the other: the second takes over from the first while events come;
        nobody takes over from the second, which lasts as long as it may. Returns whether they ended, with less than
        plenty found."""
        history, began, runs = self.history, self.world.now, list[Run]()
        troubled = True
        while troubled or len(runs) < 2 or history.under_way:
            if history.found.plenty or history.too_long(began):
                return False
            before = history.runs
            if troubled and not history.under_way and not history.tasks:
                # The runs under faults have ended. Killed processes may still be taken to be at work.
                troubled = False
                self.world.now += GONE
            if not troubled and len(runs) < 2:
                self.goes_on()
            if history.runs > before:
                runs.append(history.under_way[-1])
            history.advance()
        self._handed_over(*runs)
        return True

    def _handed_over(self, one: Run, two: Run) -> None:
        if not all((run.id, task) in self._over for run in (one, two) for task in one.nodes):
            return  # one of them failed, which ends the run
        for task in one.nodes:
            at, said = self._over[one.id, task]
            if at - two.began > PATIENCE:
                self.found.broken(f"{one.id}/{task} goes on for {at - two.began:.1f} s after {two.id} has begun")
            # A node that was ready only after its successor, or ended before that was ready, has nothing to hand over;
            # nor has one that was busy until its successor had lasted as long as that may.
            ready = [self._ready.get((run.id, task), math.inf) for run in (one, two)]
            met = ready[0] < ready[1] < at <= self._over[two.id, task][0]
            if met and Node(task).kind != "acks" and not gives_way(said):
                self.found.broken(f"{one.id}/{task} ends though it is not taken over from: {said}")
            elif Node(task).kind == "acks" and said != "acked":
                self.found.broken(f"{one.id}/{task}: {said}, though {two.id} has taken over")
            at, said = self._over[two.id, task]
            if at - two.began < self.seconds:
                self.found.broken(f"{two.id}/{task} ends after {at - two.began:.1f} s of {self.seconds:g} s: {said}")
