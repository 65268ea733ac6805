"""`mask` (ours): hashes or redacts fields, so that they cannot be read; hashed fields can still be joined.

`hash` is HMAC-SHA-256 under a salt that only the environment holds: equal values stay equal, and nobody without the
salt can try values out. `redact` puts a fixed text. Absent and null values stay as they are.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.field import comma_separated, reference
from conduit_tasks.record import jsons
from conduit_tasks.record.parts import NOTHING
from conduit_tasks.record.record import Record


class Mask(RecordProcessor):
    """See the module."""

    spec = Spec(
        "mask",
        "Hashes or redacts fields.",
        (
            Option(
                "fields",
                "comma-separated, under .Metadata, .Key or .Payload",
                required=True,
                example=".Payload.After.x",
            ),
            Option("method", "redact: a fixed text; hash: HMAC-SHA-256", default="redact", choices=("redact", "hash")),
            Option("replacement", "the text of redact", default="***"),
            Option("salt.env", "environment variable that holds the salt of hash", default="CONDUIT_MASK_SALT"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._fields = [reference("mask", "fields", text) for text in comma_separated(self.settings["fields"])]
        for field in self._fields:
            if field.root in ("Position", "Operation", "Payload") or field.text == ".Metadata":
                raise ConfigError(f"mask: option 'fields': {field.text} cannot be masked")
        self.reads = self.changes = NOTHING.union(*(field.parts for field in self._fields))
        self._hash = self.settings["method"] == "hash"
        self._replacement = self.settings["replacement"]
        self._salt: bytes | None = None

    def process(self, record: Record) -> Record:
        for field in self._fields:
            value = field.get(record)
            if value is not None:
                field.set(record, self._hashed(value) if self._hash else self._replacement)
        return record

    def _hashed(self, value: Any) -> str:
        if self._salt is None:
            name = self.settings["salt.env"]
            salt = os.environ.get(name, "")
            if not salt:
                raise ConfigError(f"mask: set the environment variable {name} (option 'salt.env') to a secret text")
            self._salt = salt.encode()
        return hmac.new(self._salt, _bytes(value), hashlib.sha256).hexdigest()


def _bytes(value: Any) -> bytes:
    """Returns the bytes to hash: text as it is, so that equal text always has the same hash; other values as JSON with
    sorted keys."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return jsons.dumps(value, sort_keys=True)
