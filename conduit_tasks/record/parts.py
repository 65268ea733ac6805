"""Parts of a record: which of its attributes a reference or a processor concerns."""

from __future__ import annotations

from collections.abc import Sequence

Parts = frozenset[str]
"""Names of attributes of a record: position, operation, metadata, key, before, after."""

NOTHING: Parts = frozenset()

EVERYTHING: Parts = frozenset({"position", "operation", "metadata", "key", "before", "after"})


def parts_of(names: Sequence[str]) -> Parts:
    """Returns the attributes that contain a reference with these names (`Payload`, `After`, …); no names: the whole
    record."""
    match names:
        case []:
            return EVERYTHING
        case ["Payload"]:
            return frozenset({"before", "after"})
        case ["Payload", which, *_]:
            return frozenset({which.lower()})
    return frozenset({names[0].lower()})
