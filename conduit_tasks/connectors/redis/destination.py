"""`redis` as a destination: entries of a stream, one transaction per write with the number of the last one, so that
those that come again are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import BatchDestination, Option, Spec
from conduit_tasks.connectors.connection import REDIS
from conduit_tasks.connectors.redis.client import URL, asking, check_url, opened
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, data_bytes


class RedisDestination(BatchDestination):
    """All or nothing by MULTI. The number of the last record is kept beside the stream (`{<stream>}:conduit`) in the
    same transaction, so that a write that comes again is left out, and only one of two concurrent writers succeeds (B8,
    O5)."""

    effectively_once = True
    keeps_index = True
    chunk = 1_000

    spec = Spec(
        "redis",
        "Appends records to a stream.",
        (
            URL,
            Option("stream", "its name", required=True),
            Option(
                "fields",
                "record: id, operation, key and data (the payload); payload: the payload's own fields",
                default="record",
                choices=("record", "payload"),
            ),
            Option("max-length", "entries that the stream keeps, about; 0: all", default="0"),
        ),
        connection=REDIS,
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        check_url(self.settings)
        self._stream = self.settings["stream"]
        self._most = options.integer(self.settings, "max-length")
        self._client: Any = None

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return ""

    @classmethod
    def in_any_order(cls, settings: Mapping[str, str]) -> bool:
        return True

    def open(self, state: dict[str, Any] | None) -> None:
        self.close()
        self._client = opened(self.settings["url"])

    def write(self, rows: Rows) -> dict[str, Any] | None:
        from redis.exceptions import WatchError

        records = rows.records()
        entries = [self._fields(record) for record in records]
        with asking(Refused, f"does not take the entries for {self._stream}"), self._client.pipeline() as pipe:
            had, index = self._advance(pipe, rows.numbers) if rows.numbers is not None else (0, {})
            if had == len(entries):
                return None
            # A transaction is not rolled back: if the entries failed during its execution, the number would be stored
            # without them.
            kind = self._client.type(self._stream).decode()
            if kind not in ("none", "stream"):
                raise ConfigError(
                    f"redis: option 'stream': {self._stream} is a {kind}; name another, or remove what is there"
                )
            # Invariant 4: a writer that lost the lease meanwhile appends nothing.
            self.still_ours()
            pipe.multi()
            for fields in entries[had:]:
                pipe.xadd(self._stream, fields, maxlen=self._most or None, approximate=True)
            if index:
                pipe.hset(self._index, mapping=index)
            try:
                pipe.execute()
            except WatchError:
                raise Unavailable(f"redis: another writer of this destination appended to {self._stream}") from None
        return None

    @property
    def _index(self) -> str:
        return f"{{{self._stream}}}:conduit"

    def _advance(self, pipe: Any, numbers: RowNumbers) -> tuple[int, dict[str, int]]:
        """Returns the number of rows that are there already, and the index entry that covers the rest. The index is
        watched until the transaction."""
        name = f"{numbers.pipeline}/{numbers.destination}/{numbers.epoch}"
        pipe.watch(self._index)
        current = int(pipe.hget(self._index, name) or 0)
        had, last = numbers.received(current)
        return had, {name: last}

    def _fields(self, record: Record) -> dict[str, bytes | str]:
        payload = record.after if record.after is not None else record.before
        if self.settings["fields"] == "payload":
            if not isinstance(payload, dict) or not payload:
                raise Refused("a record without a structured payload has no fields; write `fields: record`")
            # Text as it is, other values as JSON.
            return {str(n): v if isinstance(v, str) else jsons.dumps(v) for n, v in payload.items()}
        fields: dict[str, bytes | str] = {"id": record.id, "operation": record.operation}
        if record.key is not None:
            fields["key"] = data_bytes(record.key)
        return {**fields, "data": data_bytes(payload)}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
