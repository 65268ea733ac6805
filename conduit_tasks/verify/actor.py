"""Names and rates of the faults that may happen to a process, a fault that is aimed at one operation, and the state of
a process; `world` carries them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

FATES = frozenset(
    {"go", "switch", "before", "after", "power", "pause", "short pause", "long pause", "double", "forget"}
)
"""Possible fates of an operation."""


class Crash(BaseException):
    """The end of a process. Not an Exception: nothing may handle it, as nothing handles a SIGKILL."""


class Stuck(Exception):
    """Failure of a process in which nothing will ever happen again, such as a wait that nobody ends."""


@dataclass(frozen=True)
class Rates:
    """Probabilities of faults per changing operation. Reading operations count a tenth."""

    crash: float = 0.008
    power: float = 0.001
    pause: float = 0.002
    double: float = 0.01
    switch: float = 0.08
    forget: float = 0.0
    """Redis loses its changes since `Operator` last remembered its state, at most a second."""


@dataclass
class Aim:
    """A fault at a chosen point: the `nth` operation that begins with `what`, of an actor whose name contains `who`.

    `fate`: the actor dies `before` or `after` the operation, or stands still before it (`long pause`) until its lease
    has passed to another, which has confirmed something; a fate outside `FATES` happens to the world right after the
    operation (`World.on_mishap`).
    """

    what: str
    who: str
    nth: int
    fate: str

    def hit(self, actor: str, what: str) -> bool:
        """Returns whether this operation is the chosen one; counts `nth` down."""
        if not what.startswith(self.what) or self.who not in actor:
            return False
        self.nth -= 1
        return self.nth == 0


class Signal:
    """A counting signal for the one thread that waits, or will wait, for it. A semaphore is Python code, and slower."""

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()
        self.acquire = self._told.get

    def release(self) -> None:
        self._told.put(None)


@dataclass(eq=False)
class Beat:
    """A call that a process makes every `every` seconds beside its work, as long as it returns True; `due`: the next
    time."""

    due: float
    every: float
    call: Callable[[], bool]


@dataclass(eq=False)
class Actor:
    """One process. `left`: Airflow has given it up, but it may go on: a zombie; `beats`: its calls beside the work."""

    name: str
    function: Callable[[], Any]
    wake: float = 0.0
    dead: bool = False
    left: bool = False
    ended: bool = False
    answer: Any = None
    error: BaseException | None = None
    turn: Signal = field(default_factory=Signal)
    beats: list[Beat] = field(default_factory=list)
    beating: bool = False
    blocked: bool = False
    """Whether it waits for Redis, which answers once something is there."""
