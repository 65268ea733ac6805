"""Course of one seed: runs under faults, then without them until drained, then an account of every event, and how many
repetitions its interruptions explain."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from conduit_tasks.connectors import registry
from conduit_tasks.errors import BrokerFull, BrokerUnavailable, ConduitError, InvariantBroken, Missing, PipelineStopped
from conduit_tasks.verify import receiver
from conduit_tasks.verify.actor import Actor, Crash
from conduit_tasks.verify.checks import account
from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.executors import Executors
from conduit_tasks.verify.lasting import Lasting
from conduit_tasks.verify.outside import Outside
from conduit_tasks.verify.queues import Queues
from conduit_tasks.verify.resends import Resends
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario import Scenario
from conduit_tasks.verify.scenario_file import PIPELINE
from conduit_tasks.verify.tasks import Run
from conduit_tasks.verify.world import World

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline
    from conduit_tasks.verify.operator import Operator

ROUNDS = 9
"""Limit of runs under faults."""
HAND_OVERS = 6
"""The same limit for runs that last, and take over from each other."""
CALM = 30
"""Limit of runs without faults within which everything must be drained."""

FULL = 10
"""Limit of runs within which work in progress must end if Redis is full."""
LONGEST = 400.0
"""Seconds that each of the two parts may take, in the world's time; hardly any takes 90."""


class History:
    """One history: plays Airflow, the operator and the producers, by the world's own random generator."""

    def __init__(self, scenario: Scenario, home: Path, client: Any, trace: bool) -> None:
        self.scenario, self.home, self.client = scenario, home, client
        self.world = World(scenario.seed, scenario.rates, scenario.budget, scenario.aims, trace=trace)
        self.random = self.world.random
        self.disk = Disk(home)
        self.found = Found()
        self._tasks = scenario.tasks
        self.odd: list[str] = []
        self.runs = 0
        self.interrupted = 0
        self.stopped = 0
        """Deliveries to `web` that a stop ended. Records that had been delivered are confirmed then."""
        self.under_way: list[Run] = []
        self.tasks: list[tuple[Run | None, str, Actor]] = []
        self.queues = Queues(Random(f"queues {scenario.seed}"), lambda: self.world.now, self._queue_point)
        self.outside = Outside(scenario, home, self.queues)
        self.executors = Executors(self)
        self.lasting = Lasting(self) if scenario.lasts else None
        self.resends = Resends(self)
        self.world.beats = self.lasting is not None
        self.pipeline: Pipeline
        self.load: Callable[[], Pipeline]
        """Reads the pipeline's file."""
        self.operator: Operator

    def _queue_point(self, what: str) -> None:
        if self.world.actor is not None:
            self.world.call(what, lambda: None)

    # -- the two parts ------------------------------------------------------------------------------------------

    def trouble(self) -> None:
        """Starts runs, two at a time, while faults happen."""
        random, began = self.random, self.world.now
        most = HAND_OVERS if self.lasting is not None else ROUNDS
        while (
            self.runs < most and (self.world.budget > 0 or self.left() or self.resends.wanted) and not self.found.plenty
        ):
            if self.too_long(began):
                break
            if self.lasting is not None:
                self.lasting.goes_on()
                self.advance()
                continue
            if random.random() < 0.02:
                self.grow()
            if random.random() < 0.01 and not self.scenario.unattended:
                self.operator.operate(random)
            self.resends.goes_on()
            if not self.under_way or (len(self.under_way) < 2 and random.random() < 0.02):
                self.begin()
            self.advance()
        self.operator.fix()

    def peace(self) -> None:
        """Runs without faults: everything must be drained within a bounded number of runs."""
        self.world.calm = True
        began = self.world.now
        if self.found.plenty or (self.lasting is not None and not self.lasting.in_peace()):
            return
        self.grow(everything=True)
        if not self.ended_by(began):
            return
        if self.world.redis_full:
            self._drain_full(began)
        for _ in range(CALM):
            self.operator.fix()
            self.begin()
            run = self.under_way[-1]
            if not self.ended_by(began):
                return
            if run.idle:
                if not self.queues.left():
                    return self.resends.in_peace()
                # A message that a dead process had hidden: it comes again.
                self.world.now = max(self.world.now, (self.queues.next_visible() or 0.0) + 0.1)
        self.found.broken(f"not drained after {CALM} runs without faults; last: {self.odd[-1:]}")

    def _drain_full(self, began: float) -> None:
        """Delivers and acks what was opened while Redis is full, which frees memory (C13)."""
        for _ in range(FULL):
            self.operator.fix()
            self.begin()
            if not self.ended_by(began) or not (left := self.operator.drained()):
                break
        else:
            self.found.broken(f"C13: {left} after {FULL} runs, because Redis is full")
        self.operator.make_room()

    def ended_by(self, began: float) -> bool:
        """Lets all work in progress end; returns whether it did in time, with less than plenty found."""
        while self.under_way or self.tasks:
            if self.found.plenty or self.too_long(began):
                return False
            self.advance()
        return True

    def too_long(self, began: float) -> bool:
        """Returns whether it takes longer than `LONGEST`: then somebody waits for something that never comes."""
        if self.world.now - began <= LONGEST:
            return False
        what = "draining takes" if self.world.calm else "with its trouble it takes"
        self.found.broken(f"{what} over {LONGEST:g} s, though nothing in it takes long")
        return True

    def add_up(self) -> None:
        """Accounts for every event."""
        from conduit_tasks.micro_batch.context import open_spool
        from conduit_tasks.operate.status import snapshot

        scenario = self.scenario
        each = scenario.unconfirmed + scenario.untold + 1
        if scenario.attempts:
            # Its tasks are under way beside each other.
            each *= self._tasks
        self.found.bound = (
            self.interrupted * each * 2
            + self.stopped * scenario.unconfirmed
            + scenario.memory.lost_answers * 2
            + self.operator.rolled_back
        )
        with patch.dict(registry.BUILTIN, {receiver.PLUGIN: receiver.__name__}):
            account(scenario, self.outside, self.found, snapshot(PIPELINE), self.resends.resent)
        # Invariant 6: sealed data that is kept has not changed.
        spool = open_spool(self.pipeline)
        for key in sorted(self.client.scan_iter(f"{{conduit:{PIPELINE}}}:micro-batch:*")):
            path = self.client.hget(key, "manifest")
            try:
                for file in spool.read_sealed(path).files if path else ():
                    for _ in spool.read(file, verify=True):
                        pass
            except ConduitError as error:
                self.found.broken(f"Invariant 6: {error}")

    # -- Airflow ------------------------------------------------------------------------------------------------

    def left(self) -> bool:
        return any(self.scenario.written[s] < len(self.scenario.events[s]) for s in self.scenario.sources)

    def grow(self, *, everything: bool = False) -> None:
        self.scenario.grow(self.home, self.random, self.queues.send, everything=everything)

    def begin(self) -> None:
        self.runs += 1
        limit = self.random.choice([0.05, 60.0])
        self.under_way.append(Run(self.pipeline, f"run-{self.runs}", limit, by_hand=self.lasting is not None))

    def advance(self) -> None:
        """Starts tasks that are due, lets one process move, and handles tasks that have ended."""
        for run in self.under_way:
            for task in run.due():
                self._start(run, task)
        if not self.world.step():
            self.world.now += 1.0
        for entry in list(self.tasks):
            owner, task, actor = entry
            if actor.ended:
                self.tasks.remove(entry)
                self._ended(task, actor)
                if self.lasting is not None and owner is not None:
                    self.lasting.ended(owner, task, actor)
            if owner is None or not (actor.ended or actor.left):
                continue
            if not actor.ended:
                self.interrupted += task == "destinations.web"
                # Its heartbeat stopped, so Airflow takes it for dead; it may still move.
                self.tasks[self.tasks.index(entry)] = (None, task, actor)
            error = actor.error if actor.ended else Crash(task)
            if owner.ended(task, error, actor.answer):
                self._start(owner, task)
        for run in self.under_way:
            if run.over:
                self.world.now += 1.0
                if run.idle and not self.world.calm and self.lasting is None:
                    self.grow()
        self.under_way = [run for run in self.under_way if not run.over]

    def _start(self, run: Run, task: str) -> None:
        run.tries[task] = run.tries.get(task, 0) + 1
        name = f"{run.id}/{task}" + (f"#{run.tries[task]}" if run.tries[task] > 1 else "")
        self.tasks.append((run, task, self.world.start(name, run.function(task))))
        if not self.world.calm and self.random.random() < 0.02:
            self.world.faults.append(f"{'':8}  {name} is started twice")
            twin = self.world.start(f"{name} (twin)", run.function(task), left=True)
            self.tasks.append((None, task, twin))

    def attempt(self, name: str, function: Callable[[], Any]) -> Actor:
        """Starts an attempt of a driver's task as a process of its own."""
        actor = self.world.start(name, function, left=True)
        self.tasks.append((None, name.partition("/")[2], actor))
        return actor

    def _ended(self, task: str, actor: Actor) -> None:
        error = actor.error if actor.error is not None else self.executors.wrong(actor)
        if error is not None and ("destinations.web" in task or task in ("redrive", "replay")):
            stopped = isinstance(error, PipelineStopped)
            self.stopped, self.interrupted = self.stopped + stopped, self.interrupted + (not stopped)
        if error is None or isinstance(error, Crash):
            return
        said = f"{actor.name}: {type(error).__name__}: {error}".replace(f"{self.home}/", "")
        self.world.lived(f"!!! {said}")
        self.operator.asked = self.operator.asked or isinstance(error, Missing)
        unexpected = not isinstance(error, BrokerFull) and (
            not isinstance(error, ConduitError) or isinstance(error, BrokerUnavailable | InvariantBroken)
        )
        if unexpected and not (self.scenario.forgetful and isinstance(error, InvariantBroken)):
            self.wrong(actor.name, error)
        else:
            self.odd.append(said)

    def wrong(self, who: str, error: BaseException) -> None:
        """Reports an error that nothing explains."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{who}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        self.found.broken(said.replace(f"{self.home}/", ""))
