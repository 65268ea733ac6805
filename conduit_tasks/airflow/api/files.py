"""The pipelines of the folder, each file read again only when it changed: pages ask every few seconds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from conduit_tasks.pipeline.load import LoadResult, load_file, load_folder, pipeline_files
from conduit_tasks.settings import settings
from conduit_tasks.topology import Pipeline

Signature = tuple[int, int]
_lock = threading.Lock()
_files: dict[Path, tuple[Signature, LoadResult]] = {}
_known: tuple[Path, dict[Path, Signature], list[Pipeline]] | None = None


def pipelines() -> list[Pipeline]:
    """Returns every pipeline that loads, in the order of their ids."""
    global _known  # noqa: PLW0603 - one process, one folder
    folder = Path(settings().path(settings().pipelines))
    with _lock:
        now = _signatures(folder)
        if _known is None or _known[:2] != (folder, now):
            for gone in _files.keys() - now.keys():
                del _files[gone]
            _known = (folder, now, sorted(load_folder(folder, load=_loaded).pipelines, key=lambda p: p.id))
        return _known[2]


def _loaded(file: Path, **options: Any) -> LoadResult:
    """Loads a file as `load_file` does, or returns its last result if its time and size are the same."""
    signature = _signature(file)
    if file not in _files or _files[file][0] != signature:
        _files[file] = (signature, load_file(file, **options))
    return _files[file][1]


def _signatures(folder: Path) -> dict[Path, Signature]:
    return {f: _signature(f) for f in pipeline_files(folder)}


def _signature(file: Path) -> Signature:
    try:
        about = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return about.st_mtime_ns, about.st_size
