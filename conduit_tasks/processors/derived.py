"""Bounds the bytes of what processors derive from one record (`split`, `clone`, a function's list), as it is made;
their number is bounded where a destination reads them (`delivery.reading`).

They stay together up to the ack of their position, so one record may become `DERIVED_BYTES` at most (SEMANTICS C13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.errors import RecordError, Unwritable
from conduit_tasks.processors.result import Result
from conduit_tasks.record import batches, jsons
from conduit_tasks.record.record import Record

if TYPE_CHECKING:
    from conduit_tasks.processors.chain import Chain
    from conduit_tasks.record.batches import Sizes


class Derived(list[Record]):
    """Records derived from one, with their `bytes` together; `step` is the processor that added to them last."""

    def __init__(self, records: Iterable[Record] = (), step: str = "") -> None:
        super().__init__()
        self.bytes = 0
        self.step = step
        self.take(records)

    def take(self, records: Iterable[Record]) -> None:
        """Adds records. Raises Unwritable if they have too many bytes together."""
        for record in records:
            self.bytes += record_bytes(record)
            if self.bytes > batches.DERIVED_BYTES:
                raise too_much()
            self.append(record)


def too_much() -> Unwritable:
    """Returns the error of a record that would become too many bytes."""
    most = batches.DERIVED_BYTES
    shown = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return Unwritable(
        f"the records derived from this one would have more than {shown} together, the most that one record may become "
        f"(each counts {batches.OBJECT_BYTES} bytes beside its texts)"
    )


def check_room(record: Record, count: int) -> None:
    """Raises Unwritable if `count` copies of the record would be too many bytes, before any of them is made."""
    if count > 1 and record_bytes(record) * count > batches.DERIVED_BYTES:
        raise too_much()


def record_bytes(record: Record) -> int:
    """Returns the bytes of a record as it would be stored, and `OBJECT_BYTES`; what cannot be written counts none."""
    size = batches.OBJECT_BYTES
    for data in (record.key, record.before, record.after):
        if data:
            size += _data_bytes(data)
    with suppress(AttributeError, TypeError):
        size += sum(len(name) + len(value or "") for name, value in record.metadata.items())
    return size


def _data_bytes(data: Any) -> int:
    try:
        return len(orjson.dumps(data) if data.__class__ is dict else data)
    except TypeError:
        try:
            return len(jsons.dumps(data))
        except (RecordError, TypeError, ValueError, RecursionError):
            return 0


def in_parts(chain: Chain, records: list[Record], keys: Sizes, limit: int) -> Iterator[list[Result]]:
    """Runs the chain over records. Yields the results of some records after the others: until those that it derived
    have about `limit` bytes, at least one; all of those that share a key, or none. The caller keeps no record of
    `records`.

    `keys`: one number per record, ascending, the same for records that an earlier node derived from one.
    """
    limit = min(limit, batches.DERIVED_BYTES)
    if chain.many:
        yield from _whole_keys(chain.levels(records, limit), keys)
        return
    start = 0
    while start < len(records):
        results = _first(chain, records[start:], keys[start:], limit)
        start += len(results)
        yield results


def _whole_keys(parts: Iterable[list[Result]], keys: Sizes) -> Iterator[list[Result]]:
    """Yields the same results, cut between keys; a failure for each record of a key of which too much was derived."""
    start, held = 0, list[Result]()
    for results in parts:
        held = _checked([*held, *results], keys[start:])
        reached = start + len(held)
        # The key that is next may continue the last one.
        end = int(keys.searchsorted(keys[reached])) if reached < len(keys) else reached
        if end > start:
            yield held[: end - start]
            start, held = end, held[end - start :]


def _checked(results: list[Result], keys: Sizes) -> list[Result]:
    """Returns the results, and failures in place of those of a key that have too much together."""
    if sum(map(derived_bytes, results)) <= batches.DERIVED_BYTES:
        return results
    out: list[Result] = []
    for _, own in groupby(zip(keys.tolist(), results), key=lambda each: each[0]):
        some = [result for _, result in own]
        if sum(map(derived_bytes, some)) > batches.DERIVED_BYTES:
            step = next(step for r in reversed(some) if (step := getattr(r.records, "step", None)) is not None)
            some = [refused(step)] * len(some)
        out += some
    return out


def _first(chain: Chain, records: Sequence[Record], keys: Sizes, limit: int) -> list[Result]:
    """Returns the results of the first records: of as many as `in_parts` yields at a time."""
    results = chain.run(records, limit)
    if len(results) == len(records):
        return results
    key = keys[len(results) - 1]
    end = int(keys.searchsorted(key, "right"))
    used = sum(map(derived_bytes, results[int(keys.searchsorted(key)) :]))
    while len(results) < end:
        if used <= batches.DERIVED_BYTES:
            results += chain.run([records[len(results)]])
            used += derived_bytes(results[-1])
        else:
            results.append(Result((records[len(results)],)))
    if used > batches.DERIVED_BYTES:
        step = next(step for r in reversed(results) if (step := getattr(r.records, "step", None)) is not None)
        results[end - 1] = refused(step)
    return results


def derived_bytes(result: Result) -> int:
    """Returns the bytes of the records of a result, if they are derived ones; else 0."""
    return result.records.bytes if isinstance(result.records, Derived) else 0


def refused(step: str) -> Result:
    """Returns the failure of a record of which too much was derived, by this processor last."""
    error = too_much()
    return Result.failure(str(error), error.error_class, step)
