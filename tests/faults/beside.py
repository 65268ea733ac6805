"""Shards of a micro-batch in processes of their own, beside each other, in place of Spark executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.forked import Forked
from tests.micro_batch.harness import here
from tests.waiting import until


class Died(Exception):
    """A process ended without an answer, as a Python worker of Spark does that is killed."""


@dataclass
class Beside:
    """Runs each shard in a process of its own. `retries`: how often a piece whose process died is run again, alone, as
    Spark's task retry does. `processes`: those under way and those before, by piece."""

    retries: int = 0
    processes: dict[Any, list[Forked]] = field(default_factory=dict)
    jobs: list[list[Any]] = field(default_factory=list)

    def __call__(self, function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if not isinstance(pieces[0], int):
            return here(function, pieces)  # a source's slices
        self.jobs.append(list(pieces))
        with ThreadPoolExecutor(len(pieces)) as pool:
            return list(pool.map(lambda piece: self._answer(function, piece), pieces))

    def _answer(self, function: Callable[[Any], Any], piece: Any) -> Any:
        for _ in range(1 + self.retries):
            process = self.start(function, piece)
            try:
                return process.answer()
            except EOFError:
                pass
        raise Died(f"the process of {piece} ended with {process.returncode}")

    def start(self, function: Callable[[Any], Any], piece: Any) -> Forked:
        process = Forked(function, piece)
        self.processes.setdefault(piece, []).append(process)
        return process

    def cut_off(
        self, deliver: Callable[[Beside], Any], middle: Callable[[], bool], then: Callable[[], None] = lambda: None
    ) -> None:
        """Has a delivery fail because the process of piece 1 is killed in the middle; `then` the others go on."""

        def fails() -> None:
            with pytest.raises(Died):
                deliver(self)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(fails)
            try:
                until(middle, "the middle of the delivery")
            finally:
                self.processes[1][0].kill()
                then()
            done.result()

    def stop(self) -> None:
        for some in self.processes.values():
            for process in some:
                process.kill()
                process.wait()
