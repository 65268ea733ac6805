"""A notifier of Airflow's that writes what it is told to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk.bases.notifier import BaseNotifier


class ToFile(BaseNotifier):
    """`fail`: a file; while it is there nobody can be told."""

    template_fields = ("text",)

    def __init__(self, path: str, text: str, fail: str = "") -> None:
        super().__init__()
        self.path, self.text, self.fail = path, text, fail

    def notify(self, context: Any) -> None:
        if self.fail and Path(self.fail).exists():
            raise ConnectionError("nobody is there")
        with Path(self.path).open("a") as file:
            file.write(self.text + "\n")


class Elsewhere(ToFile):
    """It can only be made where there is a task."""

    def __init__(self) -> None:
        raise LookupError("there is no task")
