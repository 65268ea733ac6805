"""The parts of the embedded stack by themselves: processes, Redis, files, environment."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis as client

from conduit_tasks.errors import ConfigError
from conduit_tasks.private import socket_in
from conduit_tasks.redis_client.connection import check_durability
from conduit_tasks.stack import processes, redis
from conduit_tasks.stack.down import down
from conduit_tasks.stack.layout import Layout, Process, State
from conduit_tasks.stack.processes import StackError
from conduit_tasks.stack.up import end_left_behind
from conduit_tasks.verify.server import own_redis
from conduit_tasks.waits import still_running
from tests.waiting import until


@pytest.fixture
def run(layout: Layout) -> Iterator[Callable[[str], Process]]:
    """Starts Python programs; whatever is left of them is ended."""
    started: list[Process] = []

    def start(program: str) -> Process:
        argv = [sys.executable, "-c", program]
        process = processes.start(argv, env={}, cwd=layout.home, log=layout.log("program"))
        started.append(process)
        return process

    yield start
    for process in started:
        processes.stop(process, timeout=0)


def test_a_process_ends_by_itself_when_asked(run: Callable[[str], Process]) -> None:
    process = run("import time; time.sleep(300)")

    assert processes.stop(process, timeout=60)

    assert processes.find(process) is None


def test_one_that_nobody_waits_for_has_ended_all_the_same(run: Callable[[str], Process]) -> None:
    """As in a container whose first process leaves zombies."""
    process = run("import time; time.sleep(300)")
    program = (
        "from conduit_tasks.stack.processes import stop; from conduit_tasks.stack.layout import Process\n"
        f"raise SystemExit(not stop(Process({process.pid}, {process.created!r}), timeout=60))"
    )

    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False)

    assert done.returncode == 0
    assert processes.find(process) is None


def test_one_that_does_not_listen_is_killed_with_all_it_had_started(
    run: Callable[[str], Process], layout: Layout
) -> None:
    child = layout.home / "child"
    process = run(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        f"open({str(child)!r}, 'w').write(str(p.pid) + ' ')\n"
        "time.sleep(300)\n"
    )
    until(lambda: child.exists() and child.read_text().endswith(" "))
    below = psutil.Process(int(child.read_text()))

    assert not processes.stop(process, timeout=0.5)

    assert processes.find(process) is None
    assert still_running([below], 240) == []


def test_a_component_that_may_end_at_any_moment_is_asked_again(run: Callable[[str], Process], layout: Layout) -> None:
    ready = layout.home / "ready"
    process = run(
        "import signal, time\n"
        "asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked and exit(0) or asked.append(1))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "while True: time.sleep(300)\n"
    )
    until(ready.exists)
    assert processes.stop(process, timeout=240, again=0.2)


@pytest.fixture
def killed(run: Callable[[str], Process], layout: Layout) -> tuple[Process, psutil.Process]:
    """A killed part and the process that it left running: as a scheduler's workers, which are deaf to SIGTERM and
    belong to nobody once it was killed."""
    child = layout.home / "child"
    left = run(
        "import subprocess, sys, time\n"
        "deaf = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)'\n"
        "p = subprocess.Popen([sys.executable, '-c', deaf], process_group=0)\n"
        f"open({str(child)!r}, 'w').write(str(p.pid) + ' ')\n"
        "time.sleep(300)\n"
    )
    until(lambda: child.exists() and child.read_text().endswith(" "))
    worker = psutil.Process(int(child.read_text()))
    assert processes.end_left_behind(left, grace=0.2) == 0, "it still runs"
    psutil.Process(left.pid).kill()
    until(lambda: processes.find(left) is None)
    return left, worker


def test_what_a_killed_one_left_running_is_ended_and_nothing_else(
    killed: tuple[Process, psutil.Process], run: Callable[[str], Process]
) -> None:
    left, worker = killed
    beside = run("import time; time.sleep(300)")
    said: list[str] = []

    end_left_behind(State(processes={"scheduler": left, "api-server": beside}), said.append)

    assert said == ["ended 1 process that a killed scheduler had left running"]
    assert still_running([worker], 240) == []
    assert processes.find(beside) is not None


def test_what_a_killed_one_left_running_is_ended_when_the_stack_is_stopped(
    killed: tuple[Process, psutil.Process], layout: Layout
) -> None:
    left, worker = killed
    layout.prepare()
    State(processes={"scheduler": left}).save(layout)
    said: list[str] = []
    assert down(layout, said.append)
    assert said == ["ended 1 process that a killed scheduler had left running", "nothing runs"]
    assert still_running([worker], 240) == []


def test_a_number_used_again_is_not_taken_for_ours(run: Callable[[str], Process]) -> None:
    process = run("import time; time.sleep(300)")

    earlier = Process(process.pid, process.created - 100)
    assert processes.find(earlier) is None
    assert processes.end_left_behind(earlier) == 0
    assert processes.find(process) is not None


def test_a_part_that_dies_while_starting_is_named_with_its_last_words(
    run: Callable[[str], Process], layout: Layout
) -> None:
    process = run("raise SystemExit('port taken')")
    log = layout.log("program")

    with pytest.raises(StackError, match=r"scheduler ended.*program\.log[\s\S]*port taken"):
        processes.wait_for(
            "scheduler", lambda: False, alive=lambda: processes.find(process) is not None, timeout=60, log=log
        )


def test_a_part_that_never_answers_is_named_with_its_log(layout: Layout) -> None:
    with pytest.raises(StackError, match=r"api-server did not answer within 0\.2 s; see .*api\.log"):
        processes.wait_for("api-server", lambda: False, alive=lambda: True, timeout=0.2, log=layout.log("api"))


@pytest.fixture
def embedded(layout: Layout) -> Iterator[Callable[[], Process]]:
    """Starts the embedded Redis, as often as asked."""
    started: list[Process] = []

    def start() -> Process:
        started.append(processes.start(redis.command(layout), env={}, cwd=layout.redis, log=layout.log("redis")))
        until(lambda: redis.answers(layout))
        return started[-1]

    yield start
    for process in started:
        processes.stop(process, timeout=5)


@pytest.mark.proves("T1")
def test_the_embedded_redis_is_durable_private_and_survives_a_kill(
    layout: Layout, embedded: Callable[[], Process]
) -> None:
    # Given the embedded server, which the broker's own check accepts
    process = embedded()
    with client.Redis.from_url(redis.url(layout)) as connection:
        check_durability(connection, "check")
        connection.set("kept", "1")
        synced = connection.info("persistence")["aof_last_write_status"]
    assert synced == "ok"
    assert stat.S_IMODE(layout.socket.stat().st_mode) == 0o700

    # When it is killed and started again (what the kernel has of the file survives the process)
    psutil.Process(process.pid).send_signal(signal.SIGKILL)
    until(lambda: processes.find(process) is None)
    assert not redis.answers(layout)
    embedded()

    # Then it still knows
    with client.Redis.from_url(redis.url(layout)) as connection:
        assert connection.get("kept") == b"1"


def test_a_socket_path_that_is_too_long_moves_to_the_temporary_folder(tmp_path: Path) -> None:
    near, far = Layout(Path("/srv/conduit")), Layout(tmp_path / ("deep" * 30))

    assert near.socket == Path("/srv/conduit/.conduit/redis/redis.sock")
    assert len(str(far.socket)) < 100
    assert far.socket != Layout(tmp_path / ("deeq" * 30)).socket


def test_whoever_asks_for_the_command_of_a_redis_can_start_it_however_long_the_path_is(tmp_path: Path) -> None:
    # Given a home of which nothing is there yet, too deep for a socket
    layout = Layout(tmp_path / ("deep" * 30))
    # When the command is all that somebody asked for
    process = processes.start(redis.command(layout), env={}, cwd=layout.redis, log=layout.redis / "log")
    # Then the server answers
    try:
        until(lambda: redis.answers(layout))
    finally:
        processes.stop(process, timeout=5)


def test_verifys_own_redis_starts_in_a_deep_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    with own_redis(folder) as url, client.Redis.from_url(url) as connection:
        assert connection.ping()


@pytest.mark.parametrize(("name", "clean"), [("dag-processor", True), ("scheduler", False)])
def test_what_holds_no_work_may_be_killed(name: str, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.stack import down

    monkeypatch.setattr(down.processes, "stop", lambda *_, **__: False)
    said: list[str] = []
    assert down._stop(Process(1, 0.0), name, said.append) is clean
    assert said[0].startswith(f"killed {name}")


def test_a_path_too_long_for_a_socket_is_told_by_its_bytes() -> None:
    here = Path("/" + "x" * 80)
    assert socket_in(here) == here / "redis.sock"
    there = socket_in(Path("/" + "é" * 80))
    assert there.parent.parent == Path(tempfile.gettempdir())
    assert there != socket_in(Path("/" + "è" * 80))


def test_a_sockets_folder_is_taken_only_if_nobody_else_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a home whose path is too long for a socket, so that the socket is in the temporary folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    layout = Layout(tmp_path / ("x" * 120))
    layout.prepare_redis()
    folder = layout.socket.parent
    assert folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Its own is taken again, and closed to others
    folder.chmod(0o755)
    layout.prepare_redis()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # What others could write to, made, or lead elsewhere, is not
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="somebody else"):
        layout.prepare_redis()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="somebody else"):
        layout.prepare_redis()
    folder.unlink()
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="somebody else"):
        layout.prepare_redis()
