"""One replay in a process of its own, which may kill itself: `python -m tests.replay.attempt START END WHAT RUN [POINT]
[DESTINATION…]`. POINT: `before SCRIPT` or `after SCRIPT`; what it prints last is how many records it delivered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from conduit_tasks.broker.access import Access
from conduit_tasks.connectors.base import Limit
from conduit_tasks.resend import prepare
from conduit_tasks.resend.replay import replay
from conduit_tasks.spool.spool import Spool
from tests.delivery.shelf import register
from tests.faults.parts import ROOT

NOWHERE = "nowhere"


def attempt(*words: str, point: str = NOWHERE, destinations: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Starts one: from, to, what, run."""
    command = [sys.executable, "-m", "tests.replay.attempt", *words, point, *destinations]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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


if __name__ == "__main__":
    start, end, what, run, point, *destinations = sys.argv[1:]
    register()
    prepare.LIMIT = Limit(records=7)
    if point != NOWHERE:
        kill_at(point)
    print(sum(o.delivered for o in replay("p", start, end, destinations, what, run=run, wait=60.0)))
