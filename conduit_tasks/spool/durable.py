"""What POSIX asks of a writer that wants its files to outlive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def make_folders(folder: Path) -> None:
    """Creates `folder` and its parents; each new entry is fsynced in the folder that holds it."""
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


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
