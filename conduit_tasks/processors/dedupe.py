"""`dedupe` (ours): filters records whose key was seen before, within a time to live; the first of them goes on.

Redis remembers, per key, the *id* of the record that came first, and one command serves a whole block of records. A
record that comes again after a crash finds its own id there and goes on: it is never taken for its own duplicate
(C10). The time to live begins with the first record and is not prolonged.

A Redis that has reached its `maxmemory` still remembers the keys of records under way, so that these are delivered and
memory is freed; records that are not read yet stay in their source.

Of two records with the same key, the first is the one that asks Redis first; within one partition, that is their
order. A first record that is nacked later still counts: its duplicates are gone, and its dead letter stands for them.

Keys outlive the pipeline by the time to live: a pipeline that is started again under the same id, and reads its sources
from their beginning, filters the same records again. Give `memory` another name in such a case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.processors.field import reference
from conduit_tasks.processors.many import Made, ManyProcessor
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings as installation

_memory: dict[str, str] | None = None


@contextmanager
def in_memory() -> Iterator[None]:
    """Remembers in this process alone while the block runs: a unit test must not claim keys of a running pipeline."""
    global _memory  # noqa: PLW0603 - code in the block builds its processors itself
    _memory = {}
    try:
        yield
    finally:
        _memory = None


class Dedupe(ManyProcessor):
    """See the module."""

    spec = Spec(
        "dedupe",
        "Filters records whose key was seen before.",
        (
            Option("key", "the field that tells records apart; one without it goes on", default=".Key"),
            Option("ttl", "how long a key is remembered", default="24h"),
            Option(
                "memory",
                "name of what is remembered in this pipeline, which several processors may share; default: one's own",
            ),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._field = reference("dedupe", "key", self.settings["key"])
        self._ttl = int(options.duration(self.settings, "ttl") * 1000)
        if self._ttl < 1:
            raise ConfigError("dedupe: option 'ttl' must be at least 1ms")
        self._redis: Any = None

    def process_many(self, records: Sequence[Record]) -> list[Made]:
        made: list[Made] = list(records)
        claims: dict[str, tuple[str, list[int]]] = {}
        for place, record in enumerate(records):
            try:
                value = self._field.get(record)
            except RecordError as error:
                made[place] = error
                continue
            if value is not None:
                claims.setdefault(self._claim(record, value), (record.id, []))[1].append(place)
        if not claims:
            return made
        holders = self._holders(list(claims), [asks for asks, _ in claims.values()])
        for holder, (_, places) in zip(holders, claims.values()):
            mine = next((place for place in places if records[place].id == holder), None)
            for place in places:
                if place != mine:
                    made[place] = None
        return made

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def _claim(self, record: Record, value: Any) -> str:
        """Returns the Redis key of a value. All keys of a pipeline share its hash tag, so one script may touch them."""
        raw = value if isinstance(value, bytes) else jsons.dumps(value, sort_keys=True)
        kind = b"r" if isinstance(value, bytes) else b"s"
        digest = hashlib.blake2b(kind + raw, digest_size=16).hexdigest()
        memory = self.settings.get("memory") or "/".join(part for part in (self.section, self.id) if part)
        return f"{{conduit:{record.origin.pipeline}}}:dedupe:{memory}:{digest}"

    def _holders(self, claims: list[str], ids: list[str]) -> list[str]:
        if _memory is not None:
            return [_memory.setdefault(claim, asks) for claim, asks in zip(claims, ids)]
        from conduit_tasks.processors import scripts
        from conduit_tasks.redis_client.connection import connect
        from conduit_tasks.redis_client.portions import portions

        if self._redis is None:
            self._redis = connect(installation())
        holders: list[str] = []
        for some, own in zip(portions(claims), portions(ids)):
            holders += scripts.DEDUPE(self._redis, {"claims": some}, ttl=self._ttl, ids=own)
        return holders
