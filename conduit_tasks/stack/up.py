"""Start of the embedded stack: leaves running parts alone, starts the missing ones, then waits for all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from conduit_tasks.settings import forget
from conduit_tasks.spark import cds
from conduit_tasks.stack import connect, gateway, processes, redis
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.component import Loaded
from conduit_tasks.stack.environment import CONN, POOL, component_environment, load_secrets
from conduit_tasks.stack.layout import Layout, Process, State
from conduit_tasks.stack.ports import free_port
from conduit_tasks.stack.processes import StackError
from conduit_tasks.stack.starter import FILES
from conduit_tasks.waits import lock

COMPONENTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
"""Airflow's processes and their arguments. Logs are read from this machine's files, so no server for them is needed."""
HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
API_PORT = 8080
OTHERS = 600.0
"""Timeout in seconds of work that is done once, and of waiting for another `up` or `down` of the same stack."""
START_TIMEOUT = 180.0
"""Timeout in seconds; with two busy cores and a first start, Airflow has been seen to take 60."""

CONNECT_TIMEOUT = 60.0
"""Timeout in seconds; the Connect server starts beside Airflow, and listens before Airflow is healthy."""

Say = Callable[[str], None]


def up(layout: Layout, say: Say, *, timeout: float = START_TIMEOUT) -> State:
    """Starts the parts that do not run yet and waits until all answer. Safe to call again at any time.

    Raises StackError, which names the log of the part that did not start; ConfigError if Redis' server is missing.
    """
    layout.prepare()
    with alone(layout):
        state = State.load(layout)
        end_left_behind(state, say)
        _redis(layout, state, say)
        state.api_url = _api_url(state)
        connect.start(layout, state, say, free_port)
        env = component_environment(layout, state.api_url, state.redis_url, state.connect_url)
        _dag_files(layout, say)
        missing = [name for name in COMPONENTS if processes.find(state.processes.get(name)) is None]
        # In parallel to Airflow's start: it takes a minute of one core, once per JDK and pyspark.
        archive = threading.Thread(target=_archive, args=(layout, say), daemon=True)
        archive.start()
        if missing:
            _airflow(layout, state, missing, env, say)
        gateway.ensure(layout, state, env, say, port=free_port, timeout=60)
        _await_health(layout, state, timeout)
        connect.await_it(layout, state, say, CONNECT_TIMEOUT)
        with Api(state.api_url, password=load_secrets(layout)["password"]) as api:
            api.set_pool(POOL, slots())
        if state.stopped_by_shutdown:
            from conduit_tasks.stack.drain import resume

            forget()  # the settings were read before there was a Redis to find
            resume(state.stopped_by_shutdown, say)
            state.stopped_by_shutdown = []
            state.save(layout)
        archive.join(OTHERS)
        return state


def end_left_behind(state: State, say: Say) -> None:
    """Ends processes that killed parts have left running (a scheduler its workers): they would work beside the new
    ones."""
    for name, process in state.processes.items():
        if ended := processes.end_left_behind(process):
            say(f"ended {ended} {'process' if ended == 1 else 'processes'} that a killed {name} had left running")


def slots() -> int:
    """Returns the number of Spark drivers that may run at once: `CONDUIT_SPARK_SLOTS`, else one per core, at least six:
    the nodes of a run work side by side, and most of them wait most of the time."""
    return int(os.environ.get("CONDUIT_SPARK_SLOTS") or max(6, os.cpu_count() or 1))


def _redis(layout: Layout, state: State, say: Say) -> None:
    outside = os.environ.get("CONDUIT_REDIS_URL")
    state.redis_url = outside or redis.url(layout)
    if outside or processes.find(state.processes.get("redis")) is not None:
        return
    say("starting redis")
    log = layout.log("redis")
    process = processes.start(redis.command(layout), env=dict(os.environ), cwd=layout.redis, log=log)
    state.processes["redis"] = process
    state.save(layout)
    processes.wait_for(
        "redis",
        lambda: redis.answers(layout),
        alive=lambda: processes.find(process) is not None,
        timeout=60,
        log=log,
    )


def _api_url(state: State) -> str:
    """Returns the API's address: as before while a part of Airflow runs, as all know it, else with port 8080 (or
    `CONDUIT_API_PORT`), else (or for 0) with a free one. Raises StackError if another program listens at the address
    that parts know: it would be asked for what is the API's, and be told Airflow's password."""
    running = [name for name in COMPONENTS if processes.find(state.processes.get(name)) is not None]
    if state.api_url and running:
        port = int(state.api_url.rpartition(":")[2])
        if "api-server" not in running and free_port(port) != port:
            raise StackError(
                f"the api-server has ended, and another program listens at {state.api_url}, where {', '.join(running)} "
                "look for it: end that program, or let all parts have another address: `conduit stack down`, then "
                "`conduit stack up`"
            )
        return state.api_url
    wanted = int(os.environ.get("CONDUIT_API_PORT", API_PORT))
    return f"http://127.0.0.1:{free_port(wanted)}"


def _dag_files(layout: Layout, say: Say) -> None:
    """Writes the thin DAG files into a home that has none."""
    for name in ("dags/conduit.py", "dags/conduit_errors.py"):
        target = layout.home / name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            target.write_text(FILES[name])
            say(f"wrote {target}")


def _airflow(layout: Layout, state: State, missing: Sequence[str], env: dict[str, str], say: Say) -> None:
    """Starts Airflow's components that are missing."""
    with Loaded(env, layout.home, layout.log("start")) as airflow:
        _migrate(layout, airflow, say)
        say(f"starting {', '.join(missing)}")
        for name in missing:
            airflow.start(COMPONENTS[name], layout.log(name), OTHERS, partial(_keep, layout, state, name))


def _keep(layout: Layout, state: State, name: str, process: Process) -> None:
    state.processes[name] = process
    state.save(layout)


def _migrate(layout: Layout, airflow: Loaded, say: Say) -> None:
    """Creates or migrates Airflow's database; once per Airflow version."""
    from importlib.metadata import version

    marker = layout.airflow / f"migrated-{version('apache-airflow-core')}"
    if marker.exists() and CONN not in os.environ:
        return
    say("preparing Airflow's database")
    log = layout.log("migrate")
    if code := airflow.run(["db", "migrate"], log, OTHERS):
        raise StackError(f"`airflow db migrate` ended with {code}; see {log}:\n{processes.tail(log, 12)}")
    marker.touch()


def _archive(layout: Layout, say: Say) -> None:
    if cds.find(layout.home) is None:
        say("building the class-data archive for Spark drivers (once)")
        cds.ensure(layout.home)


def _await_health(layout: Layout, state: State, timeout: float) -> None:
    with Api(state.api_url) as api:
        for name in COMPONENTS:
            process, part = state.processes[name], HEALTH.get(name)

            def healthy(part: str | None = part) -> bool:
                said = api.health()
                return bool(said) if part is None else (said.get(part) or {}).get("status") == "healthy"

            processes.wait_for(
                name,
                healthy,
                alive=lambda process=process: processes.find(process) is not None,  # type: ignore[misc]
                timeout=timeout,
                log=layout.log(name),
            )


@contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """Allows one `up` or `down` of a stack at a time; a second one waits. Raises StackError if that takes too long."""
    with (layout.root / "stack.lock").open("w") as file:
        try:
            lock(file, OTHERS)
        except TimeoutError as error:
            raise StackError(f"{error}: an `up` or `down` of this stack does not end; look at its processes") from None
        yield
