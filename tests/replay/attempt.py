"""A replay in a process of its own, which may kill itself."""

from __future__ import annotations

import os
import signal
from typing import Any

from conduit_tasks.broker.access import Access
from conduit_tasks.connectors.base import Limit
from conduit_tasks.resend import prepare
from conduit_tasks.resend.replay import replay
from conduit_tasks.spool.spool import Spool

NOWHERE = "nowhere"


def attempt(start: str, end: str, what: str, run: str, *destinations: str, point: str = NOWHERE) -> int:
    """Replays `what` (all, missing) under the name `run`; returns how many records it delivered. For a process that
    ends after it: it is killed at `point`, which is `before SCRIPT`, `after SCRIPT`, or so of a file of the spool."""
    prepare.LIMIT = Limit(records=7)
    if point != NOWHERE:
        kill_at(point)
    return sum(o.delivered for o in replay("p", start, end, destinations, what, run=run, wait=60.0))


def kill_at(point: str) -> None:
    """SIGKILL at the first time this point is reached."""
    when, _, name = point.partition(" ")
    run, put = Access.run, Spool.put

    def dying(call: Any, what: str, *args: Any, **named: Any) -> Any:
        if what == name and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*args, **named)
        if what == name and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def script(self: Access, script: Any, keys: Any, **args: Any) -> Any:
        return dying(run, script.name, self, script, keys, **args)

    def file(self: Spool, path: str, data: bytes) -> None:
        dying(put, path, self, path, data)

    Access.run, Spool.put = script, file  # type: ignore[method-assign, assignment]
