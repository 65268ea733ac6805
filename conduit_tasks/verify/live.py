"""Runs one seed: makes its folder, empties its Redis, lives its history, and returns the result."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import redis

from conduit_tasks.settings import Settings, forget
from conduit_tasks.verify.history import History
from conduit_tasks.verify.machine import PATIENCE
from conduit_tasks.verify.result import Result
from conduit_tasks.verify.scenario import draw
from conduit_tasks.verify.scenario_file import PIPELINE
from conduit_tasks.verify.server import shorten_log
from conduit_tasks.verify.setting import set_up


def live(seed: int, events: int, folder: Path, url: str, *, trace: bool = False) -> Result:
    """Runs one seed in `folder` on the Redis at `url`, which is emptied. `trace`: keeps all of its history."""
    began = time.perf_counter()
    scenario = draw(seed, events)
    home = folder / f"seed-{seed}"
    (home / "include/pipelines").mkdir(parents=True)
    (home / "data").mkdir()
    (home / f"include/pipelines/{PIPELINE}.yaml").write_text(scenario.text)
    for source in scenario.sources:
        (home / f"data/{source}.jsonl").touch()
    client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=PATIENCE)
    client.config_set("maxmemory", 0)
    client.flushall()
    client.script_flush()
    shorten_log(client)
    Settings(home=home, redis_url=url, lease_ttl=5.0, lease_grace=0.5, batch_bytes=scenario.chunk).use()
    history = History(scenario, home, client, trace)
    try:
        with set_up(history):
            history.trouble()
            history.peace()
        if not history.found.plenty:
            # Otherwise it has ended early, and nothing adds up.
            history.add_up()
    except Exception as error:  # noqa: BLE001 - reported with its seed; the others run all the same
        history.wrong("verify", error)
    finally:
        forget()
        client.close()
        shutil.rmtree(home)
    world = history.world
    return Result(
        seed=seed,
        events=sum(map(len, scenario.events.values())),
        size=events,
        runs=history.runs,
        points=world.points,
        faults=world.faults,
        found=history.found,
        handovers=history.lasting.count if history.lasting else 0,
        seconds=round(time.perf_counter() - began, 2),
        odd=history.odd,
        history=list(world.history) if trace or history.found.violations else [],
        digest=world.digest.hexdigest(),
    )
