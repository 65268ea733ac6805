"""Files and folders of this user only, and the refusal of those that somebody else made or can write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from conduit_tasks.errors import ConfigError


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
