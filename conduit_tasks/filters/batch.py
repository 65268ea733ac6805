"""A matcher over whole Arrow batches: only the attributes it reads are built, each distinct combination is tried once.

Every attribute becomes a column of small integers (codes) and the list of their values, code 0 being "the event does
not have it". The codes of all attributes together make one number per row; the matcher runs once per number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.record.cloudevents import CONTEXT, PREFIX, event_type, source, text, view
from conduit_tasks.record.record import OPERATIONS, Origin
from conduit_tasks.record.schema import to_records

if TYPE_CHECKING:
    from conduit_tasks.filters.matcher import Matcher

Codes = npt.NDArray[np.int64]
Coded = tuple[Codes, list[Any]]
"""Codes per row and the value of each code; `values[0]` is None."""

DENSE = 1 << 20
"""Most combinations for which a table over all of them is used: it is smaller and faster than sorting the rows."""


def mask(matcher: Matcher, batch: pa.RecordBatch, origins: Sequence[Origin]) -> npt.NDArray[np.bool_] | None:
    """Returns a mask of the matching rows of a SPOOL_SCHEMA batch; `origins` per slice number. None = all (there are no
    filters)."""
    if matcher.always:
        return None
    rows = batch.num_rows
    if matcher.attributes is None:
        views = (view(record, None) for record in to_records(batch, origins))
        return np.fromiter((matcher.matches(each) for each in views), bool, rows)
    names = sorted(matcher.attributes)
    columns = _Columns(batch, origins)
    coded = [columns.attribute(name) for name in names]
    combined, size = np.zeros(rows, np.int64), 1
    for codes, values in coded:
        if size > DENSE:
            distinct, combined = np.unique(combined, return_inverse=True)
            size = len(distinct)
        combined = combined * len(values) + codes
        size *= len(values)
    if size <= DENSE:
        first = np.full(size, -1, np.int64)
        first[combined[::-1]] = np.arange(rows - 1, -1, -1)
        seen = np.flatnonzero(first >= 0)
        answers = np.zeros(size, bool)
        answers[seen] = [_try(matcher, names, coded, row) for row in first[seen].tolist()]
        return answers[combined]
    _, examples, inverse = np.unique(combined, return_index=True, return_inverse=True)
    return np.array([_try(matcher, names, coded, row) for row in examples.tolist()], bool)[inverse]


def _try(matcher: Matcher, names: list[str], coded: list[Coded], row: int) -> bool:
    event = {}
    for name, (codes, values) in zip(names, coded):
        value = values[codes[row]]
        if value is not None:
            event[name] = value
    return matcher.matches(event)


class _Columns:
    """Attributes of one batch, by the rules of `record.cloudevents`."""

    def __init__(self, batch: pa.RecordBatch, origins: Sequence[Origin]) -> None:
        self.batch, self.origins, self.rows = batch, origins, batch.num_rows
        self.slices = batch.column("slice").to_numpy()
        used = np.flatnonzero(np.bincount(self.slices)) if self.rows else np.array([], np.int64)
        self.used = [int(s) for s in used]

    def attribute(self, name: str) -> Coded:
        given = self.metadata(PREFIX + name)
        if name not in CONTEXT:
            return _first(given, self.metadata(name))
        if self.rows and given[0].all():
            return given
        return _first(given, self._own(name))

    def _own(self, name: str) -> Coded:
        """Returns an attribute of the specification, computed for rows whose metadata does not give it."""
        match name:
            case "source":
                return self._per_slice(lambda origin: source(origin.pipeline, origin.connector))
            case "type":
                return self._type()
            case "subject":
                return _encoded(self._keys())
            case "specversion":
                return np.ones(self.rows, np.int64), [None, "1.0"]
            case _:
                views = (view(record, (name,)) for record in to_records(self.batch, self.origins))
                return _encoded(pa.array([each.get(name) for each in views], pa.string()))

    def metadata(self, name: str) -> Coded:
        """Returns the metadata of this name: the record's own value, else the slice's."""
        shared = self._per_slice(lambda origin: origin.metadata.get(name))
        column = self.batch.column("metadata")
        if column.null_count == self.rows:
            return shared
        own, hidden = _lookup(column, name)
        if own is None:
            return shared
        codes, values = _first(_encoded(own), shared)
        if hidden is not None:
            codes = np.where(hidden, 0, codes)
        return codes, values

    def _per_slice(self, value: Any) -> Coded:
        values: list[Any] = [None]
        by_slice = np.zeros((self.used[-1] if self.used else 0) + 1, np.int64)
        for number in self.used:
            found = value(self.origins[number])
            if found is not None:
                by_slice[number] = len(values)
                values.append(found)
        return (by_slice[self.slices] if len(values) > 1 else np.zeros(self.rows, np.int64)), values

    def _type(self) -> Coded:
        operations = self.batch.column("operation").to_numpy().astype(np.int64)
        codes = self.slices.astype(np.int64) * len(OPERATIONS) + operations
        values: dict[int, str] = {}
        for code in np.flatnonzero(np.bincount(codes)).tolist() if self.rows else []:
            number, operation = divmod(code, len(OPERATIONS))
            values[code] = event_type(self.origins[number].connector, OPERATIONS[operation])
        table = np.zeros(max(values, default=0) + 1, np.int64)
        for position, code in enumerate(values):
            table[code] = position + 1
        return table[codes], [None, *values.values()]

    def _keys(self) -> pa.Array:
        keys = self.batch.column("key")
        try:
            return keys.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([text(key) for key in keys.to_pylist()], pa.string())


def _first(first: Coded, second: Coded) -> Coded:
    """Returns the first column's values, and the second's in rows that have none in the first."""
    if len(second[1]) == 1:
        return first
    if len(first[1]) == 1:
        return second
    codes = np.where(first[0] > 0, first[0], np.where(second[0] > 0, second[0] + len(first[1]) - 1, 0))
    return codes, [*first[1], *second[1][1:]]


def _encoded(values: pa.Array) -> Coded:
    """Returns codes and values of a text column by its dictionary."""
    encoded = values.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64) + 1
    return codes, [None, *encoded.dictionary.to_pylist()]


def _lookup(column: pa.MapArray, name: str) -> tuple[pa.Array | None, npt.NDArray[np.bool_] | None]:
    """Returns the values of key `name` per row (None if no row has the key), and a mask of the rows that hide the
    slice's value (None if no row does)."""
    offsets = column.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    keys, items = column.keys.slice(start, end - start), column.items.slice(start, end - start)
    hits = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
    if not len(hits):
        return None, None
    owners = np.searchsorted(offsets, hits + start, side="right") - 1
    # A null row may own items that no reader sees.
    visible = np.asarray(column.is_valid())[owners]
    hits, owners = hits[visible], owners[visible]
    take = np.full(len(column), -1, np.int64)
    take[owners] = hits
    values = items.take(pa.array(take, mask=take < 0))
    if items.null_count == 0:
        return values, None
    hidden = np.asarray(values.is_null()) & (take >= 0)
    return values, hidden if hidden.any() else None
