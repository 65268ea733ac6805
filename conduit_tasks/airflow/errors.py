"""Errors of pipeline files, shown as an import error of Airflow."""

from __future__ import annotations

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.settings import settings


def raise_findings() -> None:
    """Raises ConfigError with every error of every pipeline file, one per line; does nothing if there is none."""
    errors = load_folder(settings().path(settings().pipelines)).errors
    if errors:
        lines = "\n".join(f"  {error}\n    {error.hint}" if error.hint else f"  {error}" for error in errors)
        raise ConfigError(f"{len(errors)} errors in pipeline files; `conduit validate` shows them too:\n{lines}")
