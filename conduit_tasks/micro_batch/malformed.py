"""Rows that cannot be records: their source could not decode them, or they are nested too deeply or too large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from conduit_tasks.record.batches import deep_rows, large_rows
from conduit_tasks.record.schema import DATA

ERROR_KEY = "conduit.error"
"""Metadata key of a record that its source could not decode: it is nacked before any processor sees it."""


def undecodable(batch: pa.RecordBatch) -> pa.Array | None:
    """Returns a boolean per row: metadata says that the source could not decode it; None if no row does."""
    metadata = batch.column("metadata")
    if metadata.null_count == batch.num_rows:
        return None
    flags = [bool(m) and any(k == ERROR_KEY for k, _ in m) for m in metadata.to_pylist()]
    return pa.array(flags) if any(flags) else None


def decode_error(node: str, metadata: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {"node": node, "class": "decode", "message": dict(metadata)[ERROR_KEY]}


def malformed(batch: pa.RecordBatch, *, small: bool = False) -> tuple[np.ndarray, dict[int, str]]:
    """Returns the `shape` of each row, without the bits of data nested too deeply (these are raw bytes then), and why
    a row cannot be a record: row → reason. `small`: looks only at the size, of rows that were made."""
    found = large_rows(batch)
    shape = batch.column("shape").to_numpy()
    for part, bit in () if small else DATA.items():
        if not (shape & bit).any():
            continue
        deep = {row: f"{part}: {why}" for row, why in deep_rows(batch.column(part)).items() if shape[row] & bit}
        if deep:
            shape = shape.copy()
            shape[list(deep)] &= ~bit
            found = {**deep, **found}
    return shape, found
