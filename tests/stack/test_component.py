"""Airflow's commands, forked from a process that has loaded it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from conduit_tasks.stack import processes
from conduit_tasks.stack.component import IMPORTED, Loaded
from conduit_tasks.stack.processes import StackError
from tests.waiting import until

SEEN = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0], gc.isenabled()))
"""
STANDS_STILL = """
import sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{at}":
            time.sleep(600)
sys.meta_path.insert(0, Finder())
"""


def loaded(tmp_path: Path, site: str) -> Loaded:
    (tmp_path / "sitecustomize.py").write_text(site)
    environment = {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "PATH": os.defpath}
    return Loaded(environment, tmp_path, tmp_path / "start.log")


@pytest.mark.slow
def test_a_command_is_airflows_own_and_collects_garbage_seldom(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with loaded(tmp_path, SEEN) as airflow:
        code = airflow.run(["providers", "nothing"], log, 240)
        forker = psutil.Process(airflow.pid)
        # What would be lost, or shared, by a fork: threads, and connections to a database
        assert forker.num_threads() == 1
        assert not [file.path for file in forker.open_files() if file.path.endswith(".db")]
        # And what is started goes on without the process that it was forked of, in a session of its own
        started = airflow.start(["dag-processor"], tmp_path / "dag-processor.log", 240)
        forked = processes.find(started)
        assert forked is not None
        until(lambda: os.getsid(forked.pid) == forked.pid, "a session of its own")
        assert (forked.ppid(), forked.cwd()) == (forker.pid, str(tmp_path))
    try:
        assert not forker.is_running()
        until(lambda: forked.cmdline()[:1] == ["airflow dag-processor"], "its title")
        assert [os.readlink(f"/proc/{forked.pid}/fd/{n}") for n in range(3)] == [
            os.devnull,
            *2 * [str(tmp_path / "dag-processor.log")],
        ]
    finally:
        assert processes.stop(started, timeout=60)
    # What it says of wrong arguments, and its exit code, are Airflow's
    assert code == 2
    said = log.read_text()
    assert "airflow providers [-h] COMMAND" in said
    assert said.splitlines()[-1] == f"{IMPORTED} True"
    assert (tmp_path / "start.log").read_text() == ""


def test_an_airflow_that_cannot_be_loaded_is_told_with_what_it_said(tmp_path: Path) -> None:
    with (
        loaded(tmp_path, "import sys\nsys.modules['airflow'] = None\n") as airflow,
        pytest.raises(StackError) as raised,
    ):
        airflow.start(["scheduler"], tmp_path / "log", 240)
    assert str(raised.value).startswith(f"Airflow could not be loaded; see {tmp_path / 'start.log'}:\n")
    assert "ModuleNotFoundError: No module named 'airflow" in str(raised.value)
    assert not (tmp_path / "log").exists()


def test_an_airflow_that_does_not_load_in_time_is_told(tmp_path: Path) -> None:
    with loaded(tmp_path, STANDS_STILL.format(at="airflow")) as airflow:
        forker = psutil.Process(airflow.pid)
        with pytest.raises(StackError, match=r"airflow scheduler did not start within 0\.5 s; see .*start\.log"):
            airflow.start(["scheduler"], tmp_path / "log", 0.5)
    assert not forker.is_running()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["timeout", "interrupt"])
def test_a_command_that_does_not_end_is_killed(tmp_path: Path, how: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # Given a command that stands still once it has begun
    with loaded(tmp_path, STANDS_STILL.format(at="airflow.cli.commands.provider_command")) as airflow:
        assert airflow.run(["version"], tmp_path / "version.log", 240) == 0
        held = signal.signal(signal.SIGALRM, interrupted)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1 if how == "interrupt" else 0)
            with pytest.raises(KeyboardInterrupt if how == "interrupt" else StackError) as raised:
                airflow.run(["providers", "list"], tmp_path / "log", 240 if how == "interrupt" else 1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, held)
        said = f"airflow providers list did not end within 1 s; see {tmp_path / 'log'}"
        assert how == "interrupt" or str(raised.value) == said
        # Then nothing of it goes on
        assert [c for c in psutil.Process(airflow.pid).children() if c.status() != psutil.STATUS_ZOMBIE] == []
