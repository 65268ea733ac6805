"""Start, search and end of the stack's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from conduit_tasks.errors import ConduitError
from conduit_tasks.stack.layout import Process
from conduit_tasks.waits import still_running


class StackError(ConduitError):
    """A part of the embedded stack that did not start or stop; the message names its log file."""


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Process:
    """Starts a process in a session of its own, so that a terminal's Ctrl-C does not reach it; output goes to `log`."""
    with log.open("ab") as out:
        child = subprocess.Popen(  # noqa: S603  our own components
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    # The process shall outlive this object, which would otherwise warn when it is collected.
    child.returncode = 0
    return Process(child.pid, psutil.Process(child.pid).create_time())


def find(process: Process | None) -> psutil.Process | None:
    """Returns the running process; None if it is gone or a zombie, or if its number belongs to another process."""
    if process is None:
        return None
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.created) < 1.0
        return found if same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def stop(process: Process | None, *, timeout: float, again: float | None = None) -> bool:
    """Sends SIGTERM, and after `timeout` seconds SIGKILL to the process and to all that it had started. Returns whether
    it ended by itself, or had ended before; processes that it left behind are ended in any case. `again`: seconds after
    which SIGTERM is sent once more, and so on, to a process that may end at any moment."""
    found = find(process)
    family = left_behind(process)
    by_itself = True
    if found is not None:
        family += _children(found)
        until = time.monotonic() + timeout
        while True:
            _signal([found], signal.SIGTERM)
            left = max(0.0, until - time.monotonic())
            by_itself = not still_running([found], left if again is None else min(left, again))
            if by_itself or time.monotonic() >= until:
                break
        family.append(found)
    _end(still_running(family, 0), grace=5 if by_itself else 0)
    return by_itself


def left_behind(process: Process | None) -> list[psutil.Process]:
    """Returns the processes that `process` started, in its session and still running; after a SIGKILL only they are
    left.

    The kernel gives no new process a number that a session has, so processes of others are never in the list.
    """
    if process is None:
        return []
    try:
        if abs(psutil.Process(process.pid).create_time() - process.created) >= 1.0:
            return []  # another process has the number now, so the session has ended
    except psutil.NoSuchProcess:
        pass
    return still_running(
        [p for p in psutil.process_iter() if p.pid != process.pid and _session(p.pid) == process.pid], 0
    )


def end_left_behind(process: Process | None, grace: float = 5.0) -> int:
    """Ends the processes that a process that is gone has left: SIGTERM, after `grace` seconds SIGKILL. Returns their
    number; 0 if the process still runs."""
    rest = left_behind(process) if find(process) is None else []
    _end(rest, grace)
    return len(rest)


def _end(processes: Sequence[psutil.Process], grace: float) -> None:
    """Sends SIGTERM, after `grace` seconds (0: at once) SIGKILL, and waits: no process of ours may go on unnoticed."""
    if processes and grace:
        _signal(processes, signal.SIGTERM)
        processes = still_running(processes, grace)
    _signal(processes, signal.SIGKILL)
    still_running(processes, 5)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # gone meanwhile, or another user's
        return None


def _children(found: psutil.Process) -> list[psutil.Process]:
    try:
        return found.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def wait_for(what: str, condition: Callable[[], bool], *, alive: Callable[[], bool], timeout: float, log: Path) -> None:
    """Waits until `condition`; raises StackError if it does not come true in time or the process ends before."""
    deadline = time.monotonic() + timeout
    while True:
        come = condition()
        # Another program may answer in place of one that has ended.
        if not alive():
            raise StackError(f"{what} ended while starting; its last words in {log}:\n{tail(log, 12)}")
        if come:
            return
        if time.monotonic() > deadline:
            raise StackError(f"{what} did not answer within {timeout:g} s; see {log}:\n{tail(log, 12)}")
        time.sleep(0.1)


def tail(path: Path, lines: int) -> str:
    """Returns the last lines of a log file; "" if there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64 * 1024))
            # No more, as a device has no end.
            return "\n".join(file.read(64 * 1024).decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
