"""OpenCDC records written by people: checked, so that a mistake is reported and not guessed at."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from conduit_tasks.record.record import OPERATIONS, Origin, Record


def read(data: Any, origin: Origin | None = None) -> Record:
    """Reads the record of one OpenCDC object: position base64; a string in key or payload is raw, an object structured.

    Raises ValueError.
    """
    if not isinstance(data, dict):
        raise ValueError("it is no object")
    unknown = sorted(data.keys() - {"position", "operation", "metadata", "key", "payload"})
    if unknown:
        raise ValueError(f"a record has no {', '.join(unknown)}")
    if (data.get("operation") or "create") not in OPERATIONS:
        raise ValueError(f"operation is {data['operation']!r}, not one of {', '.join(OPERATIONS)}")
    payload, metadata = data.get("payload") or {}, data.get("metadata") or {}
    if not isinstance(payload, dict) or payload.keys() - {"before", "after"}:
        raise ValueError("payload must be an object with before and after")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata must be an object whose values are strings")
    try:
        base64.b64decode(data.get("position") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("position must be base64") from None
    return Record.from_opencdc(data, origin)
