"""Places of a pipeline's processors and filters in the text of its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from conduit_tasks.pipeline.findings import Findings, Mark, Path
from conduit_tasks.pipeline.yaml import read
from conduit_tasks.topology import Node


def variables(*texts: str) -> dict[str, str]:
    """Returns the values of environment variables that the texts of files name → `${NAME}`, the longest first: an
    expression or an error must not show them."""
    found: dict[str, str] = {}
    for text in texts:
        for document in read(text, "", os.environ):
            found |= document.report.secrets
    return dict(sorted(found.items(), key=lambda each: -len(each[0])))


class Places:
    """The places in one file of one pipeline."""

    def __init__(self, text: str, pipeline: str, env: Mapping[str, str]) -> None:
        self._lines = text.splitlines()
        self._report: Findings | None = None
        self._base: Path = ()
        self._keys: dict[str, Any] = {}
        for document in read(text, "", env):
            found = document.value.get("pipelines") if isinstance(document.value, dict) else None
            for n, keys in enumerate(found if isinstance(found, list) else ()):
                if isinstance(keys, dict) and keys.get("id") == pipeline:
                    self._report, self._base, self._keys = document.report, ("pipelines", n), keys

    def processor(self, node: str, id: str, key: str = "") -> Mark | None:
        """Returns the place (line, column) of a processor of a node, or of its `condition` or `settings.<name>`."""
        base: Path = self._base
        section = self._keys.get("processors")
        if node != "processors":
            connector = self._connector(node)
            if connector is None:
                return None
            base, section = (*base, "connectors", connector[0]), connector[1].get("processors")
            own = id.removeprefix(f"{Node(node).id}:")
            if own.startswith("cloudevents."):
                return self._setting((*base, "settings"), own)
        for n, each in enumerate(section if isinstance(section, list) else ()):
            if isinstance(each, dict) and each.get("id") == id:
                path: Path = (*base, "processors", n)
                if key.startswith("settings."):
                    return self._setting((*path, "settings"), key.removeprefix("settings."))
                return self._mark((*path, key) if key else path)
        return None

    def filter(self, node: str, number: int) -> Mark | None:
        """Returns the place of a filter of a destination's trigger."""
        connector = self._connector(node)
        if connector is None:
            return None
        return self._mark((*self._base, "connectors", connector[0], "trigger", "filters", number))

    def within(self, mark: Mark, line: int, column: int | None) -> Mark:
        """Returns the place of a line and column of a text that the file has at `mark`; lines after the first one are
        known of a text in a block (`|`) only."""
        at, start = mark
        begin = self._lines[at - 1][start - 1 : start] if at <= len(self._lines) else ""
        if begin == "|" and at + line <= len(self._lines):
            first = next((each for each in self._lines[at:] if each.strip()), "")
            return at + line, len(first) - len(first.lstrip()) + (column or 1)
        if line == 1 and column is not None:
            return at, start + column - (begin not in ("'", '"'))
        return mark

    def _connector(self, node: str) -> tuple[int, dict[str, Any]] | None:
        connectors = self._keys.get("connectors")
        for n, each in enumerate(connectors if isinstance(connectors, list) else ()):
            if isinstance(each, dict) and f"{each.get('type')}s.{each.get('id')}" == node:
                return n, each
        return None

    def _setting(self, path: Path, name: str) -> Mark | None:
        whole = (*path, name)
        if self._report is not None and whole not in self._report.values:
            whole = (*path, *name.split("."))
        return self._mark(whole)

    def _mark(self, path: Path) -> Mark | None:
        if self._report is None:
            return None
        return self._report.values.get(path) or self._report.locate(path)
