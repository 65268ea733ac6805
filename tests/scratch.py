"""The folder that tests write to: in memory, if there is room.

What is synced there, is synced at once: two thirds of the time of a test that delivers to files, and a seventh of its
CPU. What a test proves of a process that is killed is the same, as the memory is the kernel's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
NEEDED, ROOM = 16 << 30, 8 << 30
"""Bytes of memory that must be available, and that the folder must have room for: all tests take 3 GiB of it."""
PREFIX = "conduit-tests-"


def begin() -> Path | None:
    """Has this process and those that it starts write to a folder in memory; returns it. None, and nothing changes, if
    `TMPDIR` names one already, or if there is no room."""
    if "TMPDIR" in os.environ or not _room():
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        if _locked(left):
            # Somebody killed the tests that wrote there.
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    _locked(folder)
    # As /tmp: servers that run as other users write there, too.
    folder.chmod(0o1777)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def _locked(folder: Path) -> bool:
    """Takes the folder for as long as this process lives. Returns whether nobody else has it."""
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _room() -> bool:
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    runs = not found.f_flag & os.ST_NOEXEC
    return runs and found.f_bavail * found.f_frsize >= ROOM and psutil.virtual_memory().available >= NEEDED
