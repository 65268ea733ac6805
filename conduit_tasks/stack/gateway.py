"""The stack's ingest gateway, if a pipeline has a gateway source; Redis then fsyncs before it answers (T2)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.pipeline.validate import GATEWAY
from conduit_tasks.stack import processes, redis
from conduit_tasks.stack.layout import Layout, State
from conduit_tasks.stack.processes import StackError

NAME = "gateway"
PORT = 8090
_FOLDER = "include/pipelines"


def wanted(layout: Layout) -> bool:
    """Returns whether a pipeline file of this home has a gateway source. A broken file counts as having none."""
    folder = Path(os.environ.get("CONDUIT_PIPELINES", _FOLDER))
    found = load_folder(layout.home / folder).pipelines
    return any(source.plugin == GATEWAY for pipeline in found for source in pipeline.sources)


def ensure(
    layout: Layout,
    state: State,
    env: Mapping[str, str],
    say: Callable[[str], None],
    *,
    port: Callable[[int], int],
    timeout: float,
) -> None:
    """Starts the gateway if one is wanted and none runs. `port`: function that returns the given port, or a free one if
    that is taken.

    If the gateway cannot start (a token is missing), says so and goes on without it: other pipelines need none.
    """
    runs = processes.find(state.processes.get(NAME)) is not None
    if not runs:
        state.processes.pop(NAME, None)
        state.gateway_url = ""
    if not wanted(layout):
        return
    if "redis" in state.processes:
        # Also if the gateway runs: Redis may have been started again.
        redis.fsync_always(layout)
    if runs:
        return
    say(f"starting {NAME}")
    chosen = port(int(os.environ.get("CONDUIT_GATEWAY_PORT", PORT)))
    argv = [sys.executable, "-m", "conduit_tasks.cli", NAME, "--port", str(chosen)]
    log = layout.log(NAME)
    process = processes.start(argv, env=env, cwd=layout.home, log=log)
    state.processes[NAME], state.gateway_url = process, f"http://127.0.0.1:{chosen}"
    state.save(layout)
    try:
        processes.wait_for(
            NAME,
            lambda: _ready(state.gateway_url),
            alive=lambda: processes.find(process) is not None,
            timeout=timeout,
            log=log,
        )
    except StackError as error:
        processes.stop(process, timeout=5)
        del state.processes[NAME]
        state.gateway_url = ""
        state.save(layout)
        say(f"{error}\nNo events are taken over HTTP; fix it, then `conduit stack up` starts the gateway")


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
