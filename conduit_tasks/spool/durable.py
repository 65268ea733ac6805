"""What POSIX asks of a writer that wants its files to outlive a power cut."""

from __future__ import annotations

import os
from pathlib import Path

_durable: set[Path] = set()
"""Folders whose entries this process has made durable."""


def make_folders(folder: Path) -> None:
    """Creates `folder` and its parents, each durable in the folder that holds it.

    One that is there already may be the work of a process that died before it had fsynced the entry, so each is fsynced
    once by every process. What lies in a folder that we may not write to was not made by us.
    """
    for each in reversed((folder, *folder.parents)):
        if each.exists():
            if each in _durable or not os.access(each.parent, os.W_OK):
                continue
        else:
            each.mkdir(exist_ok=True)
        sync_folder(each.parent)
        _durable.add(each)


def sync_folder(folder: Path) -> None:
    """A renamed or created file is only durable once the folder's own entry list is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """`path` holds either what it held or all of `data`, whatever happens meanwhile; durable on return."""
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
