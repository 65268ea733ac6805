"""Checks of a pipeline without its wrong keys, so that all findings come at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conduit_tasks.pipeline.findings import Findings, Path
from conduit_tasks.pipeline.model import PipelineKeys

_STAND_INS = {"type": "source", "plugin": "file", "on": "acked", "call": "a:b", "notifier": "a.B"}
"""Values for required keys. What else an item says depends on its `_DECIDING` keys: while one of them has such a value,
findings at the item are not reported."""
_DECIDING = ("id", "type", "plugin")
_OF_ALL = ("E201", "E202", "E215")
"""Findings about the set of connectors: in doubt if one of the connectors is in doubt."""


def without_faults(keys: dict[str, Any], errors: Sequence[ErrorDetails]) -> tuple[PipelineKeys, list[Path]] | None:
    """Returns the pipeline without its wrong keys, and the paths below which nothing is certain. None if it cannot be
    read without them either."""
    rest, doubtful = deepcopy(keys), []
    for n, detail in enumerate(errors):
        *above, key = detail["loc"]
        if isinstance(key, int):
            return None  # the items behind it would have other numbers
        try:
            owner: Any = rest
            for part in above:
                owner = owner[part]
            if key == "id" or key in _STAND_INS:
                owner[str(key)] = f"stand-in-{n}" if key == "id" else _STAND_INS[str(key)]
                doubtful.append((tuple(above) or ("id",)) if key in _DECIDING else (*above, key))
            else:
                del owner[key]
                doubtful.append((*above, key))
        except (KeyError, IndexError, TypeError):
            return None
    try:
        return PipelineKeys.model_validate(rest), doubtful
    except ValidationError:
        return None


def drop_doubtful(report: Findings, since: int, base: Path, doubtful: Sequence[Path]) -> None:
    """Drops findings from index `since` on that may be consequences of the errors at the `doubtful` paths."""
    places = [(*base, *path) for path in doubtful]
    connectors = any(path[:1] == ("connectors",) and len(path) == 2 for path in doubtful)
    report.found[since:] = [
        (path, finding)
        for path, finding in report.found[since:]
        if not any(path[: len(place)] == place for place in places) and not (connectors and finding.code in _OF_ALL)
    ]
