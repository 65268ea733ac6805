"""Verification with real processes: a run is a process that is killed by SIGKILL at any moment, and started again.

The process does the tasks of a run side by side in threads; the executors are in it too, so that a kill ends all of
them, and no JVM is waited for. The machine decides the rest: a seed draws the pipeline and the moments of the kills,
but a repeat does not hit the same instruction.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from conduit_tasks.settings import Settings, forget
from conduit_tasks.verify.checks import account
from conduit_tasks.verify.classes import DEADLY, STUBBORN
from conduit_tasks.verify.outside import Outside
from conduit_tasks.verify.result import Found, Result
from conduit_tasks.verify.scenario import Scenario, draw
from conduit_tasks.verify.scenario_file import PIPELINE, text_of
from conduit_tasks.verify.server import leave_if_told, own_redis, scratch_folder

KILLS = 8
MOST = 60
"""Limit of runs within which everything must be drained."""
LASTS = 3_600.0
"""Seconds that a run lasts at most."""


def kill_processes(seeds: Sequence[int], events: int) -> Iterator[Result]:
    """Runs each seed, one after the other."""
    for seed in seeds:
        with scratch_folder() as folder, own_redis(folder) as url:
            yield _live(seed, events, folder, url)


def _live(seed: int, events: int, home: Path, url: str) -> Result:
    began = time.perf_counter()
    scenario = draw(seed, events, batch=max(20, events // 8))
    for rows in scenario.events.values():
        for row in rows:
            # Deadly records are tried in the other mode, in which children are not forked for nothing.
            if row["c"] in (DEADLY, STUBBORN):
                row["c"] = -1
                row.pop("deadly", None)
    if scenario.queued or scenario.resends or scenario.bulk:
        # Nobody sends again here what is parked, or sees the order in which files are written.
        scenario.queued = scenario.resends = scenario.parks = False
        scenario.bulk = ""
        scenario.text = text_of(scenario)
    (home / "include/pipelines").mkdir(parents=True)
    (home / "data").mkdir()
    found = Found()
    faults: list[str] = []
    random = Random(f"kills {seed}")
    with _receiving(scenario) as (port, sends):
        text, count = re.subn(
            r"plugin: remembering\n +settings: .*",
            f'plugin: http\n        settings: {{url: "http://127.0.0.1:{port}"}}',
            scenario.text,
        )
        assert count == 1, "the receiver, which is an HTTP server here"
        (home / f"include/pipelines/{PIPELINE}.yaml").write_text(text)
        for source in scenario.sources:
            (home / f"data/{source}.jsonl").touch()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CONDUIT_")}
        environment |= {
            "CONDUIT_HOME": str(home),
            "CONDUIT_REDIS_URL": url,
            "CONDUIT_LEASE_TTL": "0.5",
            "CONDUIT_LEASE_GRACE": "0.1",
        }
        Settings(home=home, redis_url=url).use()
        try:
            runs = _runs(scenario, home, environment, random, faults, found)
            # Records completed but not reported, and those in flight: the documented bound of each kill.
            found.bound = len(faults) * (1_000 + scenario.unconfirmed)
            scenario.memory.taken = list(sends)
            _add_up(scenario, home, found)
        finally:
            forget()
    seconds = round(time.perf_counter() - began, 2)
    made = sum(map(len, scenario.events.values()))
    return Result(seed, made, events, runs, 0, faults, found, seconds, processes=True)


def _runs(  # noqa: PLR0917 - what one seed is made of
    scenario: Scenario, home: Path, environment: dict[str, str], random: Random, faults: list[str], found: Found
) -> int:
    """Kills some runs, then lets them finish; returns the number of runs."""
    began = time.monotonic()
    for run in range(MOST):
        leave_if_told()
        scenario.grow(home, random, _no_queue, everything=len(faults) >= KILLS)
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "conduit_tasks.verify.processes", PIPELINE, f"run-{run}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        kill = len(faults) < KILLS
        try:
            said, errors = process.communicate(timeout=random.uniform(0.3, 3.0) if kill else 120)
        except subprocess.TimeoutExpired:
            if kill:
                faults.append(f"{time.monotonic() - began:8.3f}  run-{run} is killed")
            else:
                found.broken(f"run-{run} hangs")
            process.send_signal(signal.SIGKILL)
            process.communicate()
            continue
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            found.broken(f"run-{run} ended with {process.returncode}: {errors.decode(errors='replace')[-500:]}")
        if not kill and b"idle" in said:
            return run + 1
        if b"stopped" in said:
            scenario.memory.refused = frozenset()
            _start()
        # A run that was done before it was killed, with nothing left to read, counts as a kill.
        if (
            kill
            and b"idle" in said
            and not any(scenario.written[s] < len(scenario.events[s]) for s in scenario.sources)
        ):
            faults.append(f"{time.monotonic() - began:8.3f}  nothing is left to be killed at")
    found.broken(f"not drained after {MOST} runs")
    return MOST


def _no_queue(*_: str) -> None:
    """Does nothing: in this mode sources are files."""


def _start() -> None:
    from conduit_tasks.micro_batch.context import open_broker

    broker = open_broker(PIPELINE)
    try:
        broker.lifecycle.start()
    finally:
        broker.close()


def _add_up(scenario: Scenario, home: Path, found: Found) -> None:
    from conduit_tasks.operate.status import snapshot

    account(scenario, Outside(scenario, home, None), found, snapshot(PIPELINE))


@contextmanager
def _receiving(scenario: Scenario) -> Iterator[tuple[int, list[tuple[str, str, int]]]]:
    """Runs an HTTP server that remembers, in a thread; yields its port, and (id, source, n) of all that it took."""
    from aiohttp import web

    taken: list[tuple[str, str, int]] = []
    memory = scenario.memory

    async def take(request: web.Request) -> web.Response:
        event = await request.json()
        if event["c"] in memory.refused:
            return web.Response(status=400)
        taken.append((request.headers["Idempotency-Key"], event["s"], event["n"]))
        return web.Response()

    loop = asyncio.new_event_loop()
    ports: list[int] = []
    ready = threading.Event()

    async def serve() -> None:
        application = web.Application()
        application.router.add_post("/", take)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(runner.addresses[0][1])
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    task = loop.create_task(serve())

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(20)
    try:
        yield ports[0], taken
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def main(pipeline: str, run: str) -> int:
    """Executes one run in this process; prints `idle` if there was nothing to do, `stopped` if the pipeline is stopped.

    Returns whether a task failed.
    """
    from conduit_tasks.errors import ConduitError, LeaseHeld, PipelineStopped, Unavailable
    from conduit_tasks.micro_batch.plan import plan_run
    from conduit_tasks.pipeline.load import get_pipeline
    from conduit_tasks.verify.tasks import ack_task, node_task

    said: Any = sys.stdout.write
    found = get_pipeline(pipeline)
    try:
        if not plan_run(pipeline, run).work:
            said("idle\n")
            return 0
    except ConduitError:
        said("stopped\n")
    failed: list[str] = []

    def task(work: Callable[[], str]) -> None:
        try:
            work()
        except PipelineStopped:
            said("stopped\n")
        except (LeaseHeld, Unavailable):
            return
        except BaseException:  # noqa: BLE001 - it is reported
            failed.append(traceback.format_exc())

    nodes = [*(s.node for s in found.sources), *(["processors"] if found.processors else [])]
    nodes += [d.node for d in found.destinations]
    tasks: list[Callable[[], str]] = [partial(node_task, pipeline, node, run, LASTS) for node in nodes]
    tasks += [partial(ack_task, pipeline, source.id, run) for source in found.sources]
    threads = [threading.Thread(target=task, args=(work,)) for work in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stderr.write("".join(failed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
