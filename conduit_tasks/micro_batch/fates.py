"""Fates of rows in a chain that made results of them: they go on as records, are filtered, or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from conduit_tasks.processors.result import Result
from conduit_tasks.record.record import Record


@dataclass
class Fates:
    """Rows are named by their number in the batch."""

    kept: list[int] = field(default_factory=list)
    """Row of each of `records`."""
    records: list[Record] = field(default_factory=list)
    filtered: list[int] = field(default_factory=list)
    failed: dict[int, Result] = field(default_factory=dict)
    """Row → the failure of its position: derived records are acked or nacked together."""


def fates_of(keys: np.ndarray, results: Sequence[Result]) -> Fates:
    """Returns the fates of rows by their results. `keys`: equal for rows derived from one record."""
    found = Fates()
    of = keys.tolist()
    culprits = {key: r for key, r in zip(of, results, strict=True) if r.error is not None}
    last, ordinal = -1, 0
    for i, (key, r) in enumerate(zip(of, results)):
        if key in culprits:
            found.failed[i] = culprits[key]
            continue
        if not r.records:
            found.filtered.append(i)
        if key != last:
            last, ordinal = key, 0
        for record in r.records:
            # Ordinals are dense over all derived records of one position, whichever node derived them.
            record.ordinal = ordinal
            ordinal += 1
            found.kept.append(i)
            found.records.append(record)
    return found


def error_of(node: str, result: Result) -> dict[str, str]:
    return {
        "node": f"{node}/{result.processor}" if result.processor else node,
        "class": result.error_class or "processor",
        "message": result.error or "",
    }
