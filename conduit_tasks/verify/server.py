"""A Redis of verify's own: its state is thrown away, and no other Redis is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import redis

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.parent import end_with_parent
from conduit_tasks.private import make_private, socket_in
from conduit_tasks.redis_client.connection import UNNAMED
from conduit_tasks.stack.redis import binary

LOG = 64 << 20
"""Bytes of its log from which on Redis rewrites it between seeds. Each adds a MB, to memory if `scratch` is."""

_told = Event()
"""Set by SIGTERM within `cleaned_up`."""


def scratch() -> Path:
    """Creates a folder for everything that is thrown away; in memory if the machine has such a place."""
    memory = Path("/dev/shm")  # noqa: S108 - made by mkdtemp below
    return Path(tempfile.mkdtemp(prefix="conduit-verify-", dir=memory if os.access(memory, os.W_OK) else None))


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Makes SIGTERM end this process as an exception does: servers are stopped and folders removed on the way out.

    The exception can be lost: Python prints and forgets what a signal's handler raises in a `__del__` or in the
    callback of a weak reference. `leave_if_told` raises it again.
    """

    def leave(*_: object) -> None:
        # Once: a second signal would interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _told.set()
        leave_if_told()

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _told.clear()


def leave_if_told() -> None:
    """Raises SystemExit if SIGTERM has come within `cleaned_up`; to be called by everything that goes on for long."""
    if _told.is_set():
        sys.exit(128 + signal.SIGTERM)


@contextmanager
def own_redis(folder: Path) -> Iterator[str]:
    """Starts a Redis in `folder`; yields its URL. Raises BrokerUnavailable if it does not start."""
    socket = socket_in(folder)
    if socket.parent != folder:
        make_private(socket.parent)
    command = [str(binary()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"]
    process = subprocess.Popen(  # noqa: S603 - our server
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - a system call
    )
    try:
        _await(socket, process)
        yield f"unix://{socket}"
    finally:
        process.kill()
        process.wait()


def shorten_log(client: redis.Redis) -> None:
    """Has Redis rewrite its log, which it does not do by itself, if it is longer than `LOG`; call it while it is
    empty."""
    told = client.info("persistence")
    if told.get("aof_current_size", 0) > LOG and not told["aof_rewrite_in_progress"]:
        client.bgrewriteaof()


def _await(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    client = redis.Redis(unix_socket_path=str(socket), **UNNAMED)
    try:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BrokerUnavailable(f"verify's own Redis does not start in {socket.parent}: {error}") from error
                time.sleep(0.01)
    finally:
        client.close()


@contextmanager
def scratch_folder(within: Path | None = None) -> Iterator[Path]:
    """Creates a folder by `scratch`, or one within `within`; removes it after the block."""
    folder = scratch() if within is None else Path(tempfile.mkdtemp(dir=within))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
