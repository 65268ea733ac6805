"""Files, folders and sockets of this user only: where the sockets of the stack's Redis and of Python workers are, and
the refusal of what somebody else made or can write."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import uuid
from pathlib import Path

from conduit_tasks.errors import ConfigError

SOCKET_LIMIT = 100
"""Bytes at most of a socket's path; the limit of a Unix socket is 107."""


def is_private(path: Path, *, folder: bool) -> bool:
    """Returns whether this user owns it and nobody else can write it; a link is neither a file nor a folder."""
    found = os.lstat(path)
    kind = stat.S_ISDIR if folder else stat.S_ISREG
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def check_file(path: Path) -> None:
    """Raises ConfigError if somebody else could have written the file, which says where the embedded stack is."""
    if not is_private(path, folder=False):
        raise ConfigError(
            f"{path} is not a file that only this user writes (user {os.geteuid()}): somebody else may have made it, "
            "and it says which servers are asked. Run this as the user who started the stack, or remove it; or set "
            "CONDUIT_HOME, or CONDUIT_REDIS_URL and CONDUIT_AIRFLOW_URL"
        )


def check_socket(socket: Path) -> None:
    """Raises ConfigError if somebody else could listen at this socket of an embedded stack; it need not exist, nor its
    folder. A socket elsewhere is a server that was named to the stack: whose that is, is for who named it."""
    folder = socket.parent
    if folder.parts[-2:] != (".conduit", "redis") and not folder.name.startswith("conduit-"):
        return
    try:
        private = is_private(folder, folder=True)
    except FileNotFoundError:
        return
    if not private:
        raise ConfigError(
            f"{folder} is not a folder that only this user writes (user {os.geteuid()}): somebody else may listen at "
            "the embedded stack's Redis there. If it is yours, `chmod 700` it; if not, remove it and start the stack "
            "again (`conduit stack up`)"
        )


def socket_in(folder: Path) -> Path:
    """Returns the socket of a Redis with its data in `folder`: there, or below the temporary folder if that path is too
    long for a socket."""
    return _short(folder, "redis.sock") / "redis.sock"


def python_sockets(home: Path) -> Path:
    """Returns the folder of the sockets between a JVM and its Python workers on this machine. It is made for its owner
    only, because anybody who reaches a socket could run any code in the worker. Raises ConfigError."""
    folder = _short(home / ".conduit" / "python", f".{uuid.uuid4()}.sock")
    make_private(folder)
    return folder


def _short(folder: Path, name: str) -> Path:
    """Returns the folder, or one in the temporary folder if the path of a socket of this name would be too long."""
    if len(os.fsencode(folder / name)) <= SOCKET_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"conduit-{digest}"


def make_private(folder: Path) -> None:
    """Makes the folder, for its owner only. Raises ConfigError if it exists and somebody else owns it or can write in
    it: in the temporary folder anybody could have made it, and then listen at the socket of Redis."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(folder, folder=True):
        raise ConfigError(
            f"{folder} is not a folder that only this user writes (mode 0700, user {os.geteuid()}): somebody else may "
            "have made it. Remove it, or set TMPDIR to a folder of your own"
        )
    folder.chmod(0o700)
