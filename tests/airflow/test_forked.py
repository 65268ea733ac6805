"""An application that is forked is to itself what one that is started is, and nothing of the task's."""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import structlog

from conduit_tasks.airflow import forked
from tests.fork import Fork
from tests.waiting import until

LOOK = """
import json, logging, os, signal, sys, threading

def open_files():
    for name in os.listdir("/proc/self/fd"):
        try:
            where = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # of the listing itself
        if int(name) > 2 and where != "/dev/null":
            yield where

loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
print(json.dumps({
    "argv": sys.argv,
    "environment": dict(os.environ),
    "name": __name__,
    "files": list(open_files()),
    "stdin": sys.stdin.read(),
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)][:1],
    "root": [logging.root.level, len(logging.root.handlers)],
    "set": [one.name for one in loggers if one.handlers or one.level or one.disabled or not one.propagate],
    "threads": threading.active_count(),
    "folder": os.getcwd(),
    "title": open("/proc/self/cmdline").read().replace("\\0", " ").split(),
}))
sys.stdout.flush()
logging.getLogger("asyncio").warning("a warning of somebody's")
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this process has loaded, and whatever threads its tests run in."""
    monkeypatch.setattr(forked, "loaded", lambda: True)


def run(file: Path, arguments: list[str], environment: dict[str, str], how: str) -> tuple[str, int]:
    """What it said, and its exit code."""
    if how == "started":
        command = [sys.executable, str(file), *arguments]
        done = subprocess.run(command, env=environment, stdout=-1, stderr=-2, stdin=-3, text=True, check=False)
        return done.stdout, done.returncode
    with forked.spare() as application:
        assert application is not None
        application.start([str(file), *arguments], environment)
        return application.stdout.read(), application.wait()


def test_a_forked_application_finds_what_a_started_one_finds(tmp_path: Path) -> None:
    file = tmp_path / "look.py"
    file.write_text(LOOK)
    environment = {"PATH": os.environ["PATH"], "MINE": "ä\udcff", "LC_CTYPE": "C.UTF-8"}
    # Given a process with handlers, files, threads and a context of its own, as a task's is
    handler, before = logging.NullHandler(), signal.signal(signal.SIGTERM, lambda *_: None)
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    logger.propagate = False
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with socket.create_server(("127.0.0.1", 0)), structlog.contextvars.bound_contextvars(mine=1):
            said, code = run(file, ["--a", "b c"], environment, "forked")
    finally:
        signal.signal(signal.SIGTERM, before)
        logger.removeHandler(handler)
        logger.propagate = True
        ended.set()
        thread.join()
    # When it is run both ways, then there is no difference
    wanted, wanted_code = run(file, ["--a", "b c"], environment, "started")
    found, right = json.loads(said.splitlines()[0]), json.loads(wanted.splitlines()[0])
    assert found.pop("title") == [sys.executable, str(file), "--a", "b", "c"]
    assert right.pop("title") == [sys.executable, str(file), "--a", "b", "c"]
    assert found == right
    assert (said.splitlines()[1:], code) == (wanted.splitlines()[1:], wanted_code) == (["a warning of somebody's"], 7)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
@pytest.mark.parametrize("how", ["started", "forked"])
def test_it_ends_with_the_code_that_python_would_end_with(
    tmp_path: Path, how: str, text: str, code: int, said: str
) -> None:
    (tmp_path / "a.py").write_text(text)
    assert run(tmp_path / "a.py", [], dict(os.environ), how) == (said, code)


@pytest.mark.parametrize("how", ["started", "forked"])
def test_what_nobody_catches_is_shown_and_ends_it_with_1(tmp_path: Path, how: str) -> None:
    (tmp_path / "a.py").write_text("1 / 0")
    said, code = run(tmp_path / "a.py", [], dict(os.environ), how)
    assert code == 1
    assert said.endswith("ZeroDivisionError: division by zero\n")


def test_files_of_its_parent_that_are_closed_later_are_not_its_own(tmp_path: Path) -> None:
    # Given an object of the parent's that has a file
    (tmp_path / "a.py").write_text(
        "import gc, socket\n"
        "mine = open(__file__)\n"
        "[each.close() for each in gc.get_objects() if type(each) is socket.socket]\n"
        "print(len(mine.read()) > 0)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as kept:
        # When that is closed in the child, then the child's files stay
        assert run(tmp_path / "a.py", [], dict(os.environ), "forked") == ("True\n", 0)
        assert kept.fileno() > 0


def test_it_does_at_its_end_what_it_has_asked_for_and_nothing_of_its_parents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import atexit\natexit.register(print, 'mine')\nprint('first')\n")
    atexit.register(print, "the parent's")
    try:
        assert run(tmp_path / "a.py", [], dict(os.environ), "forked") == ("first\nmine\n", 0)
    finally:
        atexit.unregister(print)


AS_AIRFLOW = """
import os, sys
from conduit_tasks.airflow import forked
forked.loaded = lambda: True
sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
with forked.spare() as application:
    application.start([sys.argv[1]], dict(os.environ))
    said, code = application.stdout.read(), application.wait()
print(said, code)
"""


def test_what_its_parent_has_made_of_the_standard_streams_does_not_close_them(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import gc, os, sys\n"
        "gc.collect()\n"
        "made = [os.eventfd(0) for _ in range(3)]\n"
        "print('out', flush=True)\n"
        "print('err', file=sys.stderr, flush=True)\n"
    )
    command = [sys.executable, "-c", AS_AIRFLOW, str(tmp_path / "a.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "out\nerr\n 0\n", done.stderr


def test_one_that_was_not_needed_ends_with_the_block() -> None:
    with forked.spare() as application:
        assert application is not None
        assert application.poll() is None
    assert application.poll() is not None


WAITING = """
import sys, time
from conduit_tasks.airflow import forked
forked.loaded = lambda: True
with forked.spare() as application:
    print(application.pid, flush=True)
    time.sleep(300)
"""


def test_one_whose_task_is_killed_before_it_was_needed_ends_as_well() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        pid = int(task.stdout.readline())
        assert psutil.pid_exists(pid)
        task.kill()
    until(lambda: not psutil.pid_exists(pid))


def test_a_process_forks_only_what_it_has_loaded_and_while_it_has_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(forked, "MODULES", ("json",))
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert forked.loaded()
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not forked.loaded()
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(forked, "MODULES", ("json", "no.such.module"))
    assert not forked.loaded()
    with forked.spare() as application:
        assert application is None


def test_where_open_files_cannot_be_listed_all_numbers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(os, "listdir", refuse)
    assert forked._highest() >= 256


def test_many_loggers_of_the_task_are_forgotten_without_a_look_at_all_of_them_for_each() -> None:
    # Given a process with two thousand loggers, one of which somebody has set
    def looks() -> int:
        for number in range(2_000):
            logging.getLogger(f"of.somebody.{number}")
        logging.getLogger("of.somebody.1").setLevel(logging.DEBUG)
        count = 0
        manager = logging.root.manager
        look = manager._clear_cache

        def counted() -> None:
            nonlocal count
            count += 1
            look()

        manager._clear_cache = counted
        forked._forget_logging()
        assert logging.getLogger("of.somebody.1").level == logging.NOTSET
        return count

    # Then all of them are looked at for what is set only
    assert 0 < Fork(looks).answer(60) < 50
