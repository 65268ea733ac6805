"""Runs a function in a process of its own, so that a record that kills its process kills only the child (C10)."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from conduit_tasks import connections
from conduit_tasks.connectors import kept
from conduit_tasks.parent import end_with_parent

if TYPE_CHECKING:
    from conduit_tasks.topology import Destination

T = TypeVar("T")
R = TypeVar("R")

_ANEW = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from conduit_tasks.delivery.isolated import child_main; child_main(*map(int, sys.argv[1:]))"
)
_DYING = b"exit code 1, "


class ChildDied(Exception):
    """The child ended without an answer; `how` says by which signal, exit code or error."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class ChildFailed(Exception):
    """The child lived, but what it raised or answered cannot be handed over as it is; the message has its traceback."""


def in_child(function: Callable[..., R], *args: Any, forks: bool = True) -> R:
    """Runs `function(*args)` in a forked child; its exception is raised here. `forks` False: in a new process, to which
    both are pickled, because libraries with threads of their own may have been used here, and would hang in a fork.

    Raises ChildDied, and ChildFailed in place of an exception, or for an answer, that cannot be pickled.
    """
    data, status = (_forked if forks else _started)(function, args)
    if status != 0 or not data:
        said = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise ChildDied(data.decode() if data.startswith(_DYING) else said)
    ok, value = pickle.loads(data)  # noqa: S301 - written by our own child
    if not ok:
        raise value
    return value


def survives_forks(destination: Destination) -> bool:
    """Returns whether a process that delivered to the destination, or to its dead-letter queue, may fork to do so
    again."""
    from conduit_tasks.connectors.registry import destination_class

    plugins = {destination.plugin, destination.dead_letters.plugin or destination.plugin}
    return all(getattr(destination_class(plugin), "forks", True) for plugin in plugins)


def _forked(function: Callable[..., Any], args: Sequence[Any]) -> tuple[bytes, int]:
    """Returns what the child wrote, and how it ended: an exit code, or less than 0 for a signal.

    The child collects nothing that its parent has left: an object of a library with threads, as a client of Kafka,
    needs them at its end, and no fork has them.
    """
    kept.close_all()  # a fork has a client without its threads
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.freeze()
        os.close(read_end)
        _tell(write_end, function, args)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    return data, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _started(function: Callable[..., Any], args: Sequence[Any]) -> tuple[bytes, int]:
    """Does the same as `_forked`, in a new process."""
    work = pickle.dumps(sys.path) + pickle.dumps((connections.current(), function, args), pickle.HIGHEST_PROTOCOL)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe:
        try:
            command = [sys.executable, "-c", _ANEW, str(write_end)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write_end])  # noqa: S603 - this Python
        finally:
            os.close(write_end)
        with suppress(BrokenPipeError):
            assert child.stdin is not None
            with child.stdin:
                child.stdin.write(work)
        data = pipe.read()
    return data, child.wait()


def child_main(write_end: int) -> None:
    """Runs, in the new process, what it was started for."""
    given, function, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent
    connections.give(given)
    _tell(write_end, function, args)


def _tell(write_end: int, function: Callable[..., Any], args: Sequence[Any]) -> NoReturn:
    """Writes the answer, and ends this process. A BaseException that ends it before is reported with exit code 1."""
    end_with_parent()
    code = 1
    try:
        with os.fdopen(write_end, "wb") as pipe:
            try:
                pipe.write(_answer(function, args))
                code = 0
            except BaseException as error:
                pipe.write(_DYING + f"{type(error).__name__}: {error}".encode())
                raise
    finally:
        os._exit(code)


def _answer(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Returns, pickled, whether the function ended well, and its result or exception; an exception is also unpickled
    once."""
    try:
        answer: tuple[bool, Any] = (True, function(*args))
        try:
            return _pickled(answer)
        except Exception as error:
            raise ChildFailed(f"its answer cannot be handed over: {error!r}") from error
    except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
        try:
            return _pickled((False, error))
        except Exception:  # noqa: BLE001 - an exception of any library; a child that lived has killed nothing
            return _pickled((False, ChildFailed("".join(traceback.format_exception(error)))))


def _pickled(answer: tuple[bool, Any]) -> bytes:
    data = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    if not answer[0]:
        pickle.loads(data)  # noqa: S301 - an exception with arguments of its own may not come back
    return data


def bisected(function: Callable[[Sequence[T]], list[R]], items: Sequence[T], culprit: Callable[[T, str], R]) -> list[R]:
    """Runs `function(items)`, one answer per item, in children; halves until each item that kills its child is alone.

    `culprit(item, how)` answers for such an item. At most 2·log2(len) + 1 children per culprit.
    """
    if not items:
        return []
    try:
        return in_child(function, items)
    except ChildDied as died:
        if len(items) == 1:
            return [culprit(items[0], died.how)]
    half = len(items) // 2
    return bisected(function, items[:half], culprit) + bisected(function, items[half:], culprit)
