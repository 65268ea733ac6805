"""A process of the small world: what it is, what may befall it, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

FATES = frozenset(
    {"go", "switch", "before", "after", "power", "pause", "short pause", "long pause", "double", "forget"}
)
"""What may become of an operation."""


class Crash(BaseException):
    """The end of a process. Not an Exception: nothing may handle it, as nothing handles a SIGKILL."""


class Stuck(Exception):
    """Nothing will ever happen again in this process: it waits for nobody."""


@dataclass(frozen=True)
class Rates:
    """How often, of all changing operations, something happens. Reading ones count a tenth."""

    crash: float = 0.008
    power: float = 0.001
    pause: float = 0.002
    double: float = 0.01
    switch: float = 0.08
    forget: float = 0.0
    """Redis loses what it did since `World.remembered` was taken, at most a second."""


@dataclass
class Aim:
    """A fault at a point of one's choosing: the `nth` operation `what…` of an actor whose name holds `who`.

    `fate`: it dies `before` or `after` it, or stands still before it (`long pause`) until its lease has passed to
    another, which has confirmed something; anything else happens right behind it, to the world (`World.on_mishap`).
    """

    what: str
    who: str
    nth: int
    fate: str

    def hit(self, actor: str, what: str) -> bool:
        """Whether this operation is the one."""
        if not what.startswith(self.what) or self.who not in actor:
            return False
        self.nth -= 1
        return self.nth == 0


class Signal:
    """Wakes the one thread that waits, or will wait, for it; counts. A semaphore is Python code, and slower."""

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()
        self.acquire = self._told.get

    def release(self) -> None:
        self._told.put(None)


@dataclass(eq=False)
class Beat:
    """What a process does every so many seconds beside its work, as long as it answers True; `due`: the next time."""

    due: float
    every: float
    call: Callable[[], bool]


@dataclass(eq=False)
class Actor:
    """One process. `left`: Airflow has given it up, but it may go on: a zombie; `beats`: what it does beside."""

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
    """It waits for Redis, which answers once something is there."""
