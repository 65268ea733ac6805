"""The pipelines of the folder, read again only when a file of it changed: pages ask every few seconds."""

from __future__ import annotations

import threading
from pathlib import Path

from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.pipeline.topology import Pipeline
from conduit_tasks.settings import settings

Signature = tuple[tuple[str, int, int], ...]
_lock = threading.Lock()
_known: tuple[Path, Signature, list[Pipeline]] | None = None


def pipelines() -> list[Pipeline]:
    """Every pipeline that loads, in the order of their ids."""
    global _known  # noqa: PLW0603 - one process, one folder
    folder = Path(settings().path(settings().pipelines))
    with _lock:
        now = _signature(folder)
        if _known is None or _known[:2] != (folder, now):
            _known = (folder, now, sorted(load_folder(folder).pipelines, key=lambda p: p.id))
        return _known[2]


def _signature(folder: Path) -> Signature:
    if not folder.is_dir():
        return ()
    files = ((f.name, f.stat()) for f in folder.iterdir() if f.suffix in (".yaml", ".yml"))
    return tuple(sorted((name, about.st_mtime_ns, about.st_size) for name, about in files))
