"""`conduit verify` that is told to end leaves nothing behind."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

# What a fork is to have: `verify` imports it as it begins
import conduit_tasks.cli.verify  # noqa: F401
from conduit_tasks.airflow.forked import Application
from conduit_tasks.verify import workers
from conduit_tasks.verify.processes import kill_processes
from conduit_tasks.verify.result import Found, Result
from conduit_tasks.verify.server import cleaned_up
from tests.fork import script
from tests.waiting import until

LIVE = """
if __name__ == "__main__":  # and not of a worker
    import sys, tempfile
    from conduit_tasks.cli.main import app
    from conduit_tasks.verify import server
    server.scratch = lambda: server.Path(tempfile.mkdtemp(prefix="v", dir=sys.argv[1]))
    app(sys.argv[2:])
"""


Start = Callable[..., Application]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where verify keeps everything; its path is so short that sockets lie there, too, and servers name it."""
    with tempfile.TemporaryDirectory(prefix="v") as made:
        yield Path(os.path.realpath(made))


@pytest.fixture
def verify(folder: Path) -> Iterator[Start]:
    """Starts one that is at work once it is returned: so many servers run."""
    with ExitStack() as stack:

        def start(*how: str, servers: int) -> Application:
            process = stack.enter_context(script(LIVE, folder, "verify", *how))

            def at_work() -> bool:
                assert process.poll() is None
                # To look at every process of the machine takes longer: only once the sockets are there
                sockets = list(folder.rglob("redis.sock"))
                return len(sockets) >= servers and len(running(folder, "redis-server")) == servers

            until(at_work)
            return process

        yield start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "servers"),
    [
        (["--seeds", "500", "--jobs", "1"], 1),
        (["--seeds", "500", "--jobs", "2"], 2),
        (["--processes", "9"], 1),
    ],
)
def test_a_terminated_verify_stops_its_redis_and_removes_its_folders(
    verify: Start, folder: Path, how: list[str], servers: int
) -> None:
    # Given one at work
    process = verify(*how, servers=servers)
    # When it is told to end
    os.kill(process.pid, signal.SIGTERM)
    # Then it does so, with its folders gone, and no server in them
    assert code_of(process) == 128 + signal.SIGTERM
    assert list(folder.iterdir()) == []
    assert not running(folder, "redis-server")
    until(lambda: not running(folder))


class Told:
    """Garbage that tells this process to end as it is collected: Python forgets what is raised in a `__del__`, as the
    end of a process is by the handler of SIGTERM."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def told() -> None:
    """Tells this process to end where somebody keeps that from it."""
    with suppress(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("how", [Told, told])
def test_a_seed_in_which_the_end_is_lost_is_the_last(
    how: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    lived: list[int] = []

    def live(seed: int, *_: object, **__: object) -> Result:
        lived.append(seed)
        how()
        return Result(seed, 1, 1, 1, 1, [], Found(), 0.1)

    monkeypatch.setattr(workers, "live", live)
    # When the first of some seeds is told to end
    with pytest.raises(SystemExit) as ended, cleaned_up():
        list(workers.verify(range(1, 5), 1, 1))
    # Then no other is lived
    assert ended.value.code == 128 + signal.SIGTERM
    assert lived == [1]
    # And what is lived after that in this process is not told
    monkeypatch.setattr(workers, "live", lambda seed, *_, **__: seed)
    assert list(workers.verify([1, 2], 1, 1)) == [1, 2]


@pytest.mark.parametrize(
    "goes_on", [lambda: workers._ended(None, [None]), lambda: kill_processes(range(1, 2), 200)], ids=["parent", "kills"]
)
def test_what_else_goes_on_for_long_ends_if_the_end_was_lost(goes_on: Callable[[], Iterator[Result]]) -> None:
    def lost() -> None:
        told()
        list(goes_on())

    with pytest.raises(SystemExit), cleaned_up():
        lost()


@pytest.mark.slow
def test_what_a_killed_worker_leaves_ends_with_it(verify: Start, folder: Path) -> None:
    # Given two workers, each with a server
    process = verify("--seeds", "500", "--jobs", "2", servers=2)
    servers = running(folder, "redis-server")
    assert len(servers) == 2
    # When one of them is killed
    psutil.Process(psutil.Process(servers[0]).ppid()).kill()
    # Then its server has ended, and verify says so, with nothing left behind
    until(lambda: servers[0] not in running(folder))
    assert code_of(process) == 1
    assert list(folder.iterdir()) == []
    until(lambda: not running(folder))


@pytest.mark.slow
def test_workers_and_servers_of_a_killed_verify_end(verify: Start, folder: Path) -> None:
    process = verify("--seeds", "500", "--jobs", "2", servers=2)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    until(lambda: all(ended(worker) for worker in workers))
    # A moment after the worker whose server it is
    until(lambda: not running(folder))


def code_of(process: Application) -> int | None:
    """Waits for its end, and returns its exit code."""
    until(lambda: process.poll() is not None)
    return process.returncode


def ended(process: psutil.Process) -> bool:
    """Gone, or with nobody who asks how it ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def running(folder: Path, name: str = "") -> list[int]:
    """Processes that speak of the folder, and of `name`."""
    words = (str(folder).encode(), name.encode())
    found = [p for p in Path("/proc").glob("[0-9]*/cmdline") if all(word in _bytes(p) for word in words)]
    return [int(p.parent.name) for p in found]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
