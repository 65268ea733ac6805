"""Key of the row that a record writes or deletes in a table: from its payload or its key; a record that names none is
refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Record

Cell = Callable[[str, Any], Any]
"""Makes the cell of a column from a value, which is raw bytes if a key is; None: it has none."""


def fields_of(record: Record) -> dict[str, Any]:
    """Returns the fields of a row. Raises Refused if the record has none."""
    if not isinstance(record.after, dict):
        raise Refused("a record without a structured payload after is no row; decode it first (json.decode)")
    return record.after


def key_of(data: Any, names: Sequence[str], cell: Cell) -> tuple[Any, ...] | None:
    """Returns the key's cells, or None if `data` does not have them all."""
    if isinstance(data, bytes) and len(names) == 1:
        data = {names[0]: data}
    if not isinstance(data, dict):
        return None
    cells = tuple(None if data.get(name) is None else cell(name, data[name]) for name in names)
    return None if None in cells else cells


def removed(record: Record, names: Sequence[str], cell: Cell) -> tuple[Any, ...]:
    """Returns the key of the row that a delete takes. Raises Refused if it names none."""
    for data in (record.key, record.before, record.after):
        if (key := key_of(data, names, cell)) is not None:
            return key
    raise Refused(f"a delete names no {', '.join(names)} in its key or its payload")


def written(
    record: Record, names: Sequence[str], cell: Cell
) -> tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...] | None]:
    """Returns (fields, key, key until then) of a row that is written; a key that the payload does not have is that of
    the record. Raises Refused if there is none."""
    values = fields_of(record)
    if isinstance(record.key, dict):
        values = {**{name: record.key[name] for name in names if name in record.key}, **values}
    key = key_of(values, names, cell)
    if key is None:
        raise Refused(f"the record has no {', '.join(names)}, which is the key of the table")
    return values, key, key_of(record.before, names, cell) if record.operation == "update" else None
