"""Executors of a driver's tasks: the driver itself, or (theme `attempts`) processes of their own, one of which stands
still while Spark starts another attempt of the same task, and wakes up later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConduitError, Fenced, InvariantBroken
from conduit_tasks.topology import Node
from conduit_tasks.verify.actor import Actor, Crash

if TYPE_CHECKING:
    from conduit_tasks.verify.history import History

LOOK = 0.05
"""Seconds between two looks of a driver at its tasks."""
PATIENCE = (0.5, 2.0)
"""Seconds after which Spark starts another attempt of a task that is slow."""
MOST = 4
"""Limit of attempts of one task (`spark.task.maxFailures`)."""


@dataclass
class _Task:
    """A task of a driver: its attempts, and the time from which on another one is started."""

    piece: Any
    attempts: list[Actor] = field(default_factory=list)
    until: float = 0.0
    done: bool = False
    answer: Any = None


class Executors:
    """Replacement for Spark's executors: called with a function and its pieces."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __call__(self, function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        actor = self._history.world.actor
        apart = self._history.scenario.attempts and actor is not None and "/destinations." in actor.name
        return self._beside(function, pieces) if apart else [function(piece) for piece in pieces]

    def wrong(self, actor: Actor) -> BaseException | None:
        """Returns the answer of an attempt that nobody waits for any more, if it is an error; else None."""
        return actor.answer if isinstance(actor.answer, ConduitError) else None

    def _beside(self, function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        """Runs a task for each piece, beside each other, and attempts at each one after the other."""
        world = self._history.world
        driver = world.actor
        assert driver is not None
        tasks = [_Task(piece) for piece in pieces]
        while True:
            for task in tasks:
                self._look(driver.name, task, function, f" of {task.piece}" if len(tasks) > 1 else "")
            if all(task.done for task in tasks):
                return [task.answer for task in tasks]
            self._keep(function)
            world.sleep(LOOK)

    def _look(self, driver: str, task: _Task, function: Callable[[Any], Any], of: str) -> None:
        """Takes a task's answer, or starts another attempt if none is under way or the last one is slow."""
        if task.done:
            return
        world = self._history.world
        ended = [a for a in task.attempts if a.ended or a.dead]
        for attempt in ended:
            if attempt.ended and attempt.error is None:
                task.done, task.answer = True, attempt.answer
                return
            if attempt.ended and not isinstance(attempt.error, Crash):
                raise attempt.error  # type: ignore[misc]  # it has one
        if len(ended) == len(task.attempts) or (world.now > task.until and len(task.attempts) < MOST):
            if len(task.attempts) == MOST:
                # Spark gives the job up, and the application ends with it.
                raise Crash(f"{driver}: a task failed {MOST} times")
            task.attempts.append(self._start(driver, len(task.attempts) + 1, of, function, task.piece))
            task.until = world.now + world.random.uniform(*PATIENCE)

    def _start(self, driver: str, number: int, of: str, function: Callable[[Any], Any], piece: Any) -> Actor:
        history = self._history
        if number > 1:
            history.interrupted += "destinations.web" in driver
            history.world.said(f"{driver}: attempt {number} of its task is started")
        return history.attempt(f"{driver} attempt {number}{of}", lambda: function(piece))

    def _keep(self, function: Any) -> None:
        """Renews the driver's lease, as its thread does whatever its tasks do."""
        world, task = self._history.world, getattr(function, "tasks", (function,))[0]
        with world.watching(), suppress(Fenced, InvariantBroken):
            self._history.operator.attach(Node.destination(task.destination), task.token)
