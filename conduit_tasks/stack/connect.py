"""The stack's Spark Connect server: the nodes' applications use it and start no JVM each (docs/cluster.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from conduit_tasks.spark.remote import PORT, TOKEN, Address
from conduit_tasks.stack import processes
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State
from conduit_tasks.stack.processes import StackError

NAME = "spark-connect"
VARIABLE = "CONDUIT_SPARK_CONNECT"
"""Environment variable; `off`: the stack has no such server, and each node submits by itself."""
PORT_VARIABLE = "CONDUIT_SPARK_CONNECT_PORT"


def wanted() -> bool:
    """Returns whether this stack runs one: not if the user names a Spark connection, and not if it is turned off."""
    return "AIRFLOW_CONN_SPARK_DEFAULT" not in os.environ and os.environ.get(VARIABLE, "on") != "off"


def start(layout: Layout, state: State, say: Callable[[str], None], port: Callable[[int], int]) -> None:
    """Starts the server if one is wanted and none runs, and does not wait for it. `port`: function that returns the
    given port, or a free one if that is taken."""
    if processes.find(state.processes.get(NAME)) is not None:
        return
    state.processes.pop(NAME, None)
    if not wanted():
        state.connect_url = ""
        return
    # The same port as before if possible: Airflow's components that still run know that address.
    before = Address.parse(state.connect_url).port if state.connect_url else 0
    chosen = port(before or int(os.environ.get(PORT_VARIABLE, PORT)))
    say(f"starting {NAME}")
    own = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CONDUIT_HOME": str(layout.home),
        "CONDUIT_REDIS_URL": state.redis_url,
        TOKEN: load_secrets(layout)["connect"],
    }
    argv = [sys.executable, "-m", "conduit_tasks.spark.server", "--port", str(chosen)]
    state.processes[NAME] = processes.start(argv, env=environment, cwd=layout.home, log=layout.log(NAME))
    state.connect_url = str(Address("localhost", chosen))
    state.save(layout)


def await_it(layout: Layout, state: State, say: Callable[[str], None], timeout: float) -> None:
    """Waits until the server listens. If it does not in time, says so and leaves it alone: tasks submit by themselves
    meanwhile."""
    process = state.processes.get(NAME)
    if process is None:
        return
    try:
        processes.wait_for(
            NAME,
            Address.parse(state.connect_url).listens,
            alive=lambda: processes.find(process) is not None,
            timeout=timeout,
            log=layout.log(NAME),
        )
    except StackError as error:
        say(f"{error}\nEach task starts a Spark of its own until it answers")
