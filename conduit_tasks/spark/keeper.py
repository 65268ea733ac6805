"""The child processes of an application that do small work: a keeper, and the worker that it forks.

The keeper is forked from the application before that has a second thread, because a fork beside one may copy a lock
that nobody releases. It does no work and stays as it was, so that it can fork a new worker at any time. A worker serves
one job after the other, like a Python worker of Spark's. Keeper and worker end with the application, however that
ends; they are in a process group of their own, so that a signal to the application's group leaves its end to it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import struct
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from conduit_tasks.connectors import kept
from conduit_tasks.delivery.isolated import ChildFailed
from conduit_tasks.parent import end_with_parent

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.micro_batch.deliver",
    "conduit_tasks.micro_batch.read",
    "conduit_tasks.processors.registry",
)
"""Modules that the keeper loads before its first worker, so that no worker has to. None opens a connection."""
SPENT = 1 << 30
"""Bytes that a worker may grow by and still take another job; past them it ends, and what large records took is given
back. What it shares with the keeper since its fork is not counted."""
FIRST = "500"
"""`oom_score_adj` of workers: if memory runs out, Linux ends the worker, not its application."""
START, HOW = b"s", b"h"
"""Requests to the keeper: start a worker; say how the last one ended."""
_HEAD = struct.Struct("!Q")


def fork() -> socket.socket:
    """Forks the keeper. Returns the socket by which it is asked; it ends when that is closed. Raises OSError
    if no process can be forked."""
    here, there = socket.socketpair()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        here.close()
        there.close()
        raise
    if pid == 0:
        gc.freeze()  # see `delivery.isolated`
        try:
            _tie_to(parent)
            here.close()
            _keep(there)
        except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
            traceback.print_exc()
        finally:
            os._exit(1)
    there.close()
    return here


def _tie_to(parent: int) -> None:
    """Ends this process with its parent, which may have ended before it could ask for that."""
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def started(keeper: socket.socket) -> tuple[int, socket.socket]:
    """Has the keeper start a worker. Returns its process id, and the socket by which it is given its jobs. Raises
    OSError if the keeper is gone."""
    keeper.sendall(START)
    said, files, _, _ = socket.recv_fds(keeper, _HEAD.size, 1)
    if not files:
        raise ConnectionError("the process that starts workers has ended")
    os.set_inheritable(files[0], False)
    return _HEAD.unpack(said)[0], socket.socket(fileno=files[0])


def ended(keeper: socket.socket) -> str:
    """Returns how the last worker ended, in words. It must be about to."""
    keeper.sendall(HOW)
    code = int.from_bytes(_exactly(keeper, 4), "big", signed=True)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def send(to: socket.socket, data: bytes) -> None:
    """Sends a message."""
    to.sendall(_HEAD.pack(len(data)))
    to.sendall(data)


def receive(of: socket.socket) -> bytes:
    """Returns the message that the other side sent. Raises EOFError if all processes of the other side have ended."""
    (size,) = _HEAD.unpack(_exactly(of, _HEAD.size))
    return _exactly(of, size)


def _exactly(of: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            some = of.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            some = b""
        if not some:
            raise EOFError("the other side has ended")
        data += some
    return bytes(data)


def _keep(asked: socket.socket) -> NoReturn:
    """The keeper: one worker after the other, until the application closes the socket."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    os.setpgid(0, 0)
    pid, own = 0, os.getpid()
    while word := asked.recv(1):
        if word == START:
            _load()
            here, there = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                asked.close()
                here.close()
                _work(there, own)
            there.close()
            socket.send_fds(asked, [_HEAD.pack(pid)], [here.fileno()])
            here.close()
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            asked.sendall(code.to_bytes(4, "big", signed=True))
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _load() -> None:
    for name in MODULES:
        with suppress(ImportError):  # the worker that needs the module reports it
            import_module(name)
    # A worker collects its garbage after every job, and need not go through all these modules.
    gc.freeze()


def _work(jobs: socket.socket, parent: int) -> NoReturn:
    """A worker: one job after the other, until the application closes the socket. Answers each with a pickle, and a
    byte that says whether it was the last."""
    code = 1
    try:
        _tie_to(parent)
        with suppress(OSError):  # not Linux, or a container that has set it higher
            Path("/proc/self/oom_score_adj").write_text(FIRST)
        kept.keep_here()
        begun_with = _memory()
        while True:
            try:
                answer = _answer(receive(jobs))
            except EOFError:
                code = 0
                break
            kept.close_old()
            gc.collect()
            spent = _memory() - begun_with > SPENT
            send(jobs, answer + bytes([spent]))
            if spent:
                code = 0
                break
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(job: bytes) -> bytes:
    """Returns, pickled, whether the job ended well, and its answers or its exception with its traceback as a note. A
    job is a function and its pieces, pickled."""
    try:
        function, pieces = pickle.loads(job)  # noqa: S301 - written by our own parent
        return pickle.dumps((True, [function(piece) for piece in pieces]), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - handed to the application, which raises it
        text = "".join(traceback.format_exception(error))
        error.add_note(f"In the process that did the work:\n{text}")
        try:
            data = pickle.dumps((False, error), protocol=pickle.HIGHEST_PROTOCOL)
            pickle.loads(data)  # noqa: S301 - an exception with arguments of its own may not come back
            return data
        except Exception:  # noqa: BLE001 - an exception of any library
            return pickle.dumps((False, ChildFailed(text)))


def _memory() -> int:
    """Returns the bytes of memory that this process has; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
