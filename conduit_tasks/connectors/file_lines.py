"""Rows as lines of a file: payloads without Python per record, whole records as OpenCDC JSON."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.connectors.base import Rows
from conduit_tasks.errors import Refused

BYTES = 256 << 20
"""Per piece of lines: far below the 2 GiB that the offsets of an Arrow array reach."""


def lines(rows: Rows, format: str) -> Iterator[memoryview]:
    """The rows as bytes, each with its `\\n`. Raises Refused where a payload holds a line end of its own, or is
    damaged: bisection then finds the row."""
    if format == "opencdc":
        yield memoryview(_opencdc(rows))
        return
    payloads = rows.batch.column("after")
    step = max(1, int(len(payloads) * BYTES / max(payloads.nbytes, 1)))
    for start in range(0, len(payloads), step):
        yield _payloads(payloads.slice(start, step))


def _payloads(payloads: pa.Array) -> memoryview:
    """A record without a payload (a delete) is an empty line: as many lines as records."""
    joined = pc.binary_join_element_wise(
        payloads, pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary()),
        null_handling="replace", null_replacement=b"",
    )  # fmt: skip
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    data = memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
    if bytes(data).count(b"\n") != len(joined):
        raise Refused("a raw payload with a line end in it would be two lines; write format: opencdc, which escapes it")
    return data


def _opencdc(rows: Rows) -> bytes:
    try:
        records = rows.records()
    except orjson.JSONDecodeError as e:
        raise Refused(f"a structured payload is not JSON: {e}") from e
    out = [orjson.dumps(r.to_opencdc(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE) for r in records]
    return b"".join(out)
