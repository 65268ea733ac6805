"""Check for a destination of several tasks: its cursor moves over nothing that they have not told (invariant 10)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario_file import PIPELINE


class Told:
    """Checks invariant 10 where several tasks deliver. `by_one`: returns whether one task has confirmed all of a
    micro-batch; called with destination, number and total."""

    def __init__(self, redis: Any, found: Found, by_one: Callable[[str, int, int], bool]) -> None:
        self._redis, self._found, self._by_one = redis, found, by_one
        self._of: dict[tuple[str, int], dict[int, RangeSet]] = defaultdict(lambda: defaultdict(lambda: RangeSet(())))
        self._reached: dict[str, int] = defaultdict(int)

    def telling(
        self, _: Any, destination: str, m: int, __: int, shard: int, numbers: Any, *___: Any, **____: Any
    ) -> None:
        """Notes numbers of a shard, before they are confirmed."""
        self._of[destination, m][shard] = self._of[destination, m][shard].add(numbers)

    def moved(self, _: Any, __: Any, destination: str, *___: Any, **____: Any) -> None:
        """Checks that all that the trigger matched was told, of each micro-batch that the cursor has passed."""
        cursor = int(self._redis.hget(f"{{conduit:{PIPELINE}}}:destination:{destination}", "cursor") or 0)
        for m in range(self._reached[destination] + 1, cursor + 1):
            told = sum(numbers.count for numbers in self._of.pop((destination, m), {}).values())
            total, text = self._redis.hmget(f"{{conduit:{PIPELINE}}}:micro-batch:{m}", "total", "matched")
            # What was collected says nothing any more.
            matched = json.loads(text or "{}").get(destination, told)
            if told != matched and not self._by_one(destination, m, int(total or 0)):
                self._found.broken(f"Invariant 10: {destination} passes micro-batch {m} with {told} records told")
        self._reached[destination] = max(cursor, self._reached[destination])
