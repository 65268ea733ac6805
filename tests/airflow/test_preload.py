"""Modules that the scheduler loads before its workers are forked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from conduit_tasks.airflow import forked, preload

PROGRAM = """
import json, os, sys
os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = '{"conn_type": "spark_connect", "host": "localhost", "port": 1}'
sys.argv = ["airflow", "scheduler"]
from airflow.listeners.listener import get_listener_manager
from conduit_tasks.airflow import forked
from conduit_tasks.airflow.preload import MODULES
get_listener_manager().hook.on_starting(component=object())
loaded = [name for name in MODULES if name in sys.modules]
if os.fork() == 0:
    import pyarrow.compute as pc, pyarrow as pa
    import ssl
    from airflow.sdk.api.client import Client
    # A worker's client of the API reads no certificates.
    ssl.create_default_context = None
    Client(base_url="http://localhost", token="").close()
    # A task's Arrow works in the forked process, threads and all.
    taken = pa.table({"n": list(range(100_000))}).filter(pc.field("n") > 1)
    os._exit(0 if taken.num_rows == 99_998 and forked.loaded() else 1)
forked = os.waitstatus_to_exitcode(os.wait()[1])
print(json.dumps([len(MODULES), len(loaded), forked]))
"""


@pytest.mark.slow
def test_a_scheduler_loads_what_its_tasks_will_need_and_a_forked_task_can_use_it() -> None:
    # Given Airflow as its scheduler starts it, with the plugin found by its entry point
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    wanted, loaded, forked = json.loads(done.stdout.splitlines()[-1])
    assert loaded == wanted
    assert forked == 0


@pytest.mark.parametrize(
    ("part", "times"), [("scheduler", 1), ("triggerer", 0), ("dag-processor", 1), ("api-server", 0)]
)
def test_the_parts_of_airflow_that_fork_load_it_and_no_other(
    part: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Sequence[str]] = []
    monkeypatch.setattr(preload, "preload", called.append)
    monkeypatch.setattr(sys, "argv", ["airflow", part])

    preload.on_starting(component=object())

    applications = [forked.MODULES] if part == "scheduler" else []
    assert called == [preload.MODULES] * times + applications


@pytest.mark.parametrize("connection", ['{"conn_type": "spark_connect", "host": "m"}', "spark://?host=sc://m:15002"])
def test_what_applications_at_a_connect_server_need_is_loaded_where_there_is_one(
    connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Sequence[str]] = []
    monkeypatch.setattr(preload, "preload", called.append)
    monkeypatch.setenv("AIRFLOW_CONN_WHATEVER", connection)
    for part in ("scheduler", "dag-processor"):
        monkeypatch.setattr(sys, "argv", ["airflow", part])
        preload.on_starting(component=object())

    assert called == [preload.MODULES, (*forked.MODULES, *forked.CONNECT), preload.MODULES]
