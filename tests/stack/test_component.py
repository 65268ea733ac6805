"""Airflow's commands, forked from a process that has loaded it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from conduit_tasks.stack import processes
from conduit_tasks.stack.component import IMPORTED, MODULES, Loaded
from conduit_tasks.stack.layout import Process
from conduit_tasks.stack.processes import StackError
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SEEN = f"""
import atexit, gc, os, sys
atexit.register(lambda: print(gc.get_threshold()[0], gc.isenabled()))

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in {MODULES}:
            with open("loaded", "a") as out:
                print(name, os.getpid(), file=out)

sys.meta_path.insert(0, Finder())
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
    environment = {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": os.defpath}
    return Loaded(environment, tmp_path, tmp_path / "start.log")


def loaders(tmp_path: Path) -> dict[int, list[str]]:
    """Process → what it has loaded of what is to be loaded once."""
    found: dict[int, list[str]] = {}
    for line in (tmp_path / "loaded").read_text().splitlines():
        name, pid = line.split()
        found.setdefault(int(pid), []).append(name)
    return found


def at_work(parent: psutil.Process) -> list[psutil.Process]:
    return [child for child in parent.children() if child.status() != psutil.STATUS_ZOMBIE]


def working_in(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


@pytest.mark.slow
def test_a_command_is_airflows_own_and_collects_garbage_seldom(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    with loaded(tmp_path, SEEN) as airflow:
        assert airflow.run(["providers", "nothing"], log, 240) == 2
        # What it says of wrong arguments, and its exit code, are Airflow's
        said = log.read_text()
        assert said.startswith("of an earlier start\n")
        assert "airflow providers [-h] COMMAND" in said
        assert said.splitlines()[-1] == f"{IMPORTED} True"
        # And nothing was loaded again
        assert loaders(tmp_path).keys() == {airflow.pid}
        assert sorted(loaders(tmp_path)[airflow.pid]) == sorted(MODULES)
    assert (tmp_path / "start.log").read_text() == ""


@pytest.mark.slow
def test_what_was_started_goes_on_alone(tmp_path: Path) -> None:
    log = tmp_path / "dag-processor.log"
    begun: list[Process] = []

    def known(process: Process) -> None:
        # It has a session of its own, and does nothing yet
        assert os.getsid(process.pid) == process.pid
        assert psutil.Process(process.pid).cmdline()[:1] != ["airflow dag-processor"]
        begun.append(process)

    with loaded(tmp_path, SEEN) as airflow:
        forker = psutil.Process(airflow.pid)
        started = airflow.start(["dag-processor"], log, 240, known)
        assert begun == [started]
        ours = {os.readlink(f"/proc/{airflow.pid}/fd/{n}") for n in os.listdir(f"/proc/{airflow.pid}/fd")}
    try:
        forked = processes.find(started)
        assert forked is not None
        assert not forker.is_running()
        until(lambda: forked.cmdline()[:1] == ["airflow dag-processor"], "its title")
        assert (os.getsid(forked.pid), forked.cwd()) == (forked.pid, str(tmp_path))
        files = {int(n): os.readlink(f"/proc/{forked.pid}/fd/{n}") for n in os.listdir(f"/proc/{forked.pid}/fd")}
        assert [files.pop(n) for n in range(3)] == [os.devnull, str(log), str(log)]
        assert not ours & set(files.values())
        assert loaders(tmp_path).keys() == {airflow.pid}
    finally:
        assert processes.stop(started, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["load", "known"])
def test_nothing_is_left_of_what_nobody_could_learn_of(tmp_path: Path, at: str) -> None:
    # Given somebody who asks for a component, and dies before it is known
    airflow = loaded(tmp_path, SEEN)
    process = airflow._process
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if at == "known":
            with pytest.raises(ZeroDivisionError):
                airflow.start(["version"], tmp_path / "log", 240, lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
            assert psutil.Process(airflow.pid).children()
        else:
            print(json.dumps({"fork": ["version"], "log": str(tmp_path / "log")}), file=process.stdin, flush=True)
        process.stdin.close()
        process.stdout.close()
        process.wait(120)
    finally:
        process.kill()
        process.wait(10)
    # Then it ends, and was not begun
    until(lambda: not working_in(tmp_path), "the end of what was forked")
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "does",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n",
        "import socket\nKEPT = socket.socket()\n",
    ],
    ids=["thread", "connection"],
)
def test_what_somebodys_settings_start_is_in_each_component(tmp_path: Path, does: str) -> None:
    # Given settings of Airflow that start a thread, or connect to something, which no fork would have for itself
    (tmp_path / "airflow_local_settings.py").write_text(does)
    with loaded(tmp_path, SEEN) as airflow:
        assert airflow.run(["providers", "nothing"], tmp_path / "log", 240) == 2
        # Then each command is a new Python, which loads Airflow by itself
        assert len(loaders(tmp_path)) == 2
    said = (tmp_path / "log").read_text()
    assert "airflow providers [-h] COMMAND" in said
    assert said.splitlines()[-1] == f"{IMPORTED} True"


def test_an_airflow_that_cannot_be_loaded_is_told_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text("of an earlier start\n")
    with (
        loaded(tmp_path, "import sys\nsys.modules['airflow'] = None\n") as airflow,
        pytest.raises(StackError) as raised,
    ):
        airflow.start(["scheduler"], tmp_path / "log", 240)
    said = f"the process that loads Airflow has ended; its last words in {tmp_path / 'start.log'}:\n"
    assert str(raised.value).startswith(said)
    assert "ModuleNotFoundError: No module named 'airflow" in str(raised.value)
    assert "of an earlier start" not in str(raised.value)
    assert not (tmp_path / "log").exists()


def test_an_airflow_that_does_not_load_in_time_is_told(tmp_path: Path) -> None:
    with loaded(tmp_path, STANDS_STILL.format(at=MODULES[0])) as airflow:
        forker = psutil.Process(airflow.pid)
        with pytest.raises(StackError, match=r"airflow scheduler did not start within 0\.5 s; see .*start\.log"):
            airflow.start(["scheduler"], tmp_path / "log", 0.5)
    assert not forker.is_running()


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with loaded(tmp_path, "") as airflow:
        for log in (tmp_path, tmp_path / "missing" / "log"):
            with pytest.raises(StackError, match=rf"airflow version cannot be started: .*'{log}'"):
                airflow.start(["version"], log, 240)
        assert airflow.run(["version"], tmp_path / "log", 240) == 0


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
        assert at_work(psutil.Process(airflow.pid)) == []
