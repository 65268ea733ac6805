"""Small work in a child process of the application: its answers, its errors, and every way in which it may end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conduit_tasks.connectors import kept
from conduit_tasks.delivery.isolated import ChildFailed
from conduit_tasks.errors import LeaseHeld, SourceError
from conduit_tasks.spark import keeper, local
from conduit_tasks.spark.local import LocalExecutors, WorkerLost
from conduit_tasks.waits import still_running
from tests.faults.parts import ROOT
from tests.waiting import until

SOON = 240.0


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutors]:
    monkeypatch.setattr(keeper, "MODULES", ("pyarrow",))
    made = LocalExecutors()
    yield made
    made.halt(SOON)
    made.close()


def who(_: Any) -> int:
    return os.getpid()


def square(n: int) -> int:
    return n * n


def fails(kind: str) -> None:
    if kind == "lease":
        raise LeaseHeld("destinations.to", "another", 7)
    if kind == "source":
        raise SourceError("a.jsonl is gone; put it back")
    if kind == "odd":
        raise Odd(1, 2)
    raise ValueError(kind)


class Odd(Exception):
    """An error that does not come back from a pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one}")


class Unreadable:
    """What a worker cannot read."""

    def __reduce__(self) -> Any:
        return fails, ("unreadable",)


def dies(how: int) -> None:
    os.kill(os.getpid(), how)
    time.sleep(3600)


def leaves(folder: str) -> None:
    """Forks, as a delivery does that looks for a record that kills, and hangs."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    said = Path(folder) / "side"
    said.write_text(f"{os.getpid()} {child}")
    said.rename(Path(folder) / "said")
    time.sleep(3600)


def takes(size: int) -> int:
    global _taken  # noqa: PLW0603 - memory that stays taken
    _taken = b"x" * size  # written, so that it is really taken
    return os.getpid()


_taken = b""


def test_the_answers_come_in_order_of_one_process_that_is_not_the_driver(executors: LocalExecutors) -> None:
    assert executors.run_all(square, list(range(100))) == [n * n for n in range(100)]
    one, two = executors.run_all(who, [0]), executors.run_all(who, [0])
    assert one == two != [os.getpid()]


def counts(_: Any) -> int:
    found = (kept.take("count") or (0, 0.0))[0] + 1
    kept.give("count", found, lambda: None, time.monotonic())
    return found


def test_a_client_is_kept_from_one_work_to_the_next(executors: LocalExecutors) -> None:
    assert [executors.run_all(counts, [0]) for _ in range(3)] == [[1], [2], [3]]
    assert counts(0) == counts(0) == 1


def test_an_error_of_the_work_is_raised_as_itself_with_where_it_came_from(executors: LocalExecutors) -> None:
    with pytest.raises(ValueError, match="odd number") as raised:
        executors.run_all(fails, ["odd number"])
    assert "in fails" in raised.value.__notes__[0]
    with pytest.raises(SourceError, match="put it back"):
        executors.run_all(fails, ["source"])
    with pytest.raises(LeaseHeld) as held:
        executors.run_all(fails, ["lease"])
    assert (held.value.owner, held.value.until) == ("another", 7)
    # And the process is as good as before
    assert executors.run_all(square, [3]) == [9]


def test_an_error_that_cannot_be_handed_over_is_no_death(executors: LocalExecutors) -> None:
    pid = executors.run_all(who, [0])
    for piece in ("odd", Unreadable()):
        with pytest.raises((ChildFailed, ValueError)):
            executors.run_all(fails, [piece])
    assert executors.run_all(who, [0]) == pid


def test_work_that_cannot_be_pickled_is_never_begun(executors: LocalExecutors) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        executors.run_all(lambda piece: piece, [1])
    assert executors.run_all(square, [3]) == [9]


@pytest.mark.proves("C10")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_process_that_ends_in_the_middle_is_an_error_and_the_next_work_has_another(
    executors: LocalExecutors, how: signal.Signals
) -> None:
    with pytest.raises(WorkerLost, match=f"signal {how.value}"):
        executors.run_all(dies, [how])
    assert executors.run_all(square, [3]) == [9]


def test_one_that_is_killed_between_two_works_is_replaced_and_nothing_fails(executors: LocalExecutors) -> None:
    [first] = executors.run_all(who, [0])
    jobs = executors._jobs
    assert jobs is not None
    os.kill(first, signal.SIGKILL)
    # Its threads end one after the other, and the last one closes its files
    until(lambda: local._over(jobs, 0.0), "its end")
    [second] = executors.run_all(who, [0])
    assert second != first


def test_one_that_has_taken_much_memory_gives_it_back(
    executors: LocalExecutors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SPENT", 32 << 20)  # for the children that are forked from now on
    spends = LocalExecutors()
    try:
        # Given work that leaves more memory behind than a process may keep
        [first] = spends.run_all(takes, [64 << 20])
        # Then its answer counts, and the next work has another process
        [second] = spends.run_all(who, [0])
        assert second != first
    finally:
        spends.close()
    [kept] = executors.run_all(takes, [64 << 20])
    assert executors.run_all(who, [0]) == [kept]


def test_what_the_application_had_before_the_fork_is_not_counted(
    executors: LocalExecutors, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an application that had more memory at the fork than a process may take
    assert keeper._memory() > 32 << 20
    monkeypatch.setattr(keeper, "SPENT", 32 << 20)
    large = LocalExecutors()
    try:
        # Then one process does one work after the other
        [first] = large.run_all(takes, [1 << 20])
        assert large.run_all(who, [0]) == [first]
    finally:
        large.close()


def test_a_halt_ends_it_and_what_it_has_forked(executors: LocalExecutors, tmp_path: Path) -> None:
    # Given work in the middle, with a process of its own
    errors: list[BaseException] = []

    def work() -> None:
        try:
            executors.run_all(leaves, [str(tmp_path)])
        except WorkerLost as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until((tmp_path / "said").exists, "the work")
    worker, child = (psutil.Process(int(pid)) for pid in (tmp_path / "said").read_text().split())
    try:
        # When it is halted, its own child still counts as at work
        assert not executors.halt(0.2)
        child.kill()
        # Then nothing is at work any more once both have ended, and the work has failed
        assert executors.halt(SOON)
        thread.join(SOON)
        assert len(errors) == 1
        assert still_running([worker, child], SOON) == []
    finally:
        for each in (worker, child):
            if each.is_running():
                each.kill()


def test_a_halt_without_work_is_at_once_well(executors: LocalExecutors) -> None:
    assert executors.halt(0.0)


def test_a_lost_keeper_is_an_error_that_says_so(executors: LocalExecutors) -> None:
    [worker] = executors.run_all(who, [0])
    above = psutil.Process(worker).parent()
    assert above is not None
    above.kill()
    assert still_running([psutil.Process(worker)] if psutil.pid_exists(worker) else [], SOON) == []
    with pytest.raises(WorkerLost, match="no process can be started"):
        executors.run_all(who, [0])


DRIVER = """
import os, sys, time
from conduit_tasks.spark import keeper, local
from tests.spark.test_local import leaves
keeper.MODULES = ()
local.made().run_all(leaves, [sys.argv[1]])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends with its work")
def test_a_driver_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    # Given a driver whose child is at work
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT)
    until(lambda: (tmp_path / "said").exists() or driver.poll() is not None, "the work")
    own = psutil.Process(driver.pid)
    [above] = own.children()
    worker, child = (psutil.Process(int(pid)) for pid in (tmp_path / "said").read_text().split())
    try:
        assert worker.parent() == above
        # When it is killed
        driver.kill()
        driver.wait(SOON)
        # Then the child has ended with it
        assert still_running([above, worker], SOON) == []
    finally:
        if child.is_running():
            child.kill()


def test_none_is_made_beside_other_threads() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(SOON,))
    thread.start()
    try:
        assert local.made() is None
    finally:
        done.set()
        thread.join(SOON)


def test_none_is_made_if_no_process_can_be_forked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert local.made() is None
    assert "small work is done in Spark, too" in caplog.text
