"""Fields by which records may be looked for (`index` of the pipeline file), and why others may not."""

from __future__ import annotations

from collections.abc import Sequence

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.fields import FieldRef, parse
from conduit_tasks.secret_names import FIELD

KEY = ".Key"
COLUMNS = ("Key", "Position")
"""Roots of fields that are found as a whole; of the others a field in them is."""


def index_of(fields: Sequence[str], mask: Sequence[str]) -> tuple[str, ...]:
    """Returns those fields that may be looked for, each once. Raises ConfigError for what is no field."""
    return tuple(field for field in dict.fromkeys(fields) if withheld(field, mask) is None)


def searchable(field: str, mask: Sequence[str]) -> FieldRef:
    """Parses a field by which records are to be found. Raises ConfigError if it is none, or may not be one."""
    found = parse(field)
    if not found.path and found.root not in COLUMNS:
        raise ConfigError(f"records are found by a field in {field}, by .Key or .Position, not by all of {field}")
    why = withheld(field, mask)
    if why is not None:
        raise ConfigError(f"records are not found by {field}: {why}, and whoever guesses would learn what it holds")
    return found


def withheld(field: str, mask: Sequence[str]) -> str | None:
    """Returns why nobody may look for records by this field; None: they may. `mask`: fields that the pipeline file
    masks. Raises ConfigError for what is no field."""
    wanted = parse(field)
    if any(FIELD.search(name) for name in wanted.path):
        return "its name says that it is secret"
    way = way_to(wanted)
    for each in mask:
        masked = way_to(parse(each))
        shared = min(len(way), len(masked))
        if way[:shared] == masked[:shared]:
            return f"{each} is masked"
    return None


def way_to(field: FieldRef) -> tuple[str, ...]:
    """Returns the names that lead to a field: the same, however it is written."""
    return (*field.root.split("."), *field.path)
