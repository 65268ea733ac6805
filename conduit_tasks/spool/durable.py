"""Writing files so that they survive a power cut, by the rules of POSIX."""

from __future__ import annotations

import os
from pathlib import Path

_durable: set[Path] = set()
"""Folders whose entries this process has made durable, as far as it remembers."""
MOST = 10_000
"""Limit of those that it remembers; an entry that is forgotten is made durable once more."""


def make_folders(folder: Path) -> None:
    """Creates `folder` and its parents, each durable in the folder that holds it.

    A folder that exists may have been created by a process that died before it fsynced the entry, so every process
    fsyncs each once. A folder whose parent we may not write to was not created by us, and is skipped.
    """
    for each in reversed((folder, *folder.parents)):
        if each.exists():
            if each in _durable or not os.access(each.parent, os.W_OK):
                continue
        else:
            each.mkdir(exist_ok=True)
        sync_folder(each.parent)
        if len(_durable) >= MOST:
            _durable.clear()
        _durable.add(each)


def sync_folder(folder: Path) -> None:
    """Fsyncs a folder: a renamed or created file is durable only once the folder's entries are."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file atomically: `path` holds its old content or all of `data` at any time. Durable on return."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
