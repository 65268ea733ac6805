"""The embedded stack's folder of DAG files, as a DAG bundle: touches ours when pipeline files have changed, so that
Airflow parses them again."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from airflow.dag_processing.bundles.local import LocalDagBundle

log = logging.getLogger(__name__)

OURS = ("load_dags(", "raise_findings(")
"""Calls that show that the DAGs of a file are those of the pipeline files."""
State = dict[Path, tuple[int, int, int]]


class PipelineBundle(LocalDagBundle):
    """A local folder of DAG files.

    Airflow parses a DAG file again if it is younger than the last time, else after `min_file_process_interval`. It does
    not know of the pipeline files that ours read. `refresh`, which the DAG processor calls every `refresh_interval`,
    makes our DAG files young if a pipeline file has come, changed or gone. So they need not be parsed every few
    seconds, which takes 8 % of a core.
    """

    _seen: State | None = None
    _again = False

    def refresh(self) -> None:
        """Touches our DAG files if pipeline files are not as they were; and once more at the next call, as a parse may
        have been under way, which ends later than the change and has not seen it. At first Airflow parses anyway."""
        now = _state()
        changed = self._seen is not None and now != self._seen
        if changed or self._again:
            self._touch()
        self._seen, self._again = now, changed

    def _touch(self) -> None:
        for file in self._ours():
            try:
                os.utime(file)
            except OSError as error:
                log.warning("pipeline files have changed, but %s cannot be touched: %s", file, error)

    def _ours(self) -> Iterator[Path]:
        for file in self.path.rglob("*.py"):
            try:
                text = file.read_text(errors="replace")
            except OSError:
                continue
            if any(call in text for call in OURS):
                yield file


def _state() -> State:
    """Returns inode, size and time of each pipeline file."""
    # Here: every task's process imports this module.
    from conduit_tasks.pipeline.load import pipeline_files
    from conduit_tasks.settings import settings

    out = State()
    for file in pipeline_files(Path(settings().path(settings().pipelines))):
        try:
            about = file.stat()
        except FileNotFoundError:
            continue
        out[file] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return out
