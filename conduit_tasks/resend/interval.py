"""Request for a replay: times as people write them, destinations, which records; and the event time of a record
(SEMANTICS X3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.record.fields import parse

if TYPE_CHECKING:
    from conduit_tasks.record.record import Record
    from conduit_tasks.topology import Pipeline

What = Literal["missing", "failed", "all"]
WHAT: tuple[What, ...] = ("missing", "failed", "all")

CREATED = "opencdc.createdAt"
"""Metadata in which a source gives a record's event time: nanoseconds since the epoch."""


@dataclass(frozen=True)
class Ask:
    """Request for a replay: the half-open interval [start, end) of event times, in µs since the epoch; the
    destinations; and which records of the interval (`what`)."""

    start: int
    end: int
    destinations: tuple[str, ...]
    what: What = "missing"


def ask(pipeline: Pipeline, start: str, end: str, destinations: list[str] | tuple[str, ...], what: str) -> Ask:
    """Checks the request of an operator; no destination chosen = all. Raises ConfigError naming what is wrong."""
    ids = [d.id for d in pipeline.destinations]
    if unknown := sorted(set(destinations) - set(ids)):
        raise ConfigError(f"pipeline {pipeline.id} has no destination {', '.join(unknown)}; it has {', '.join(ids)}")
    kind = next((w for w in WHAT if w == what), None)
    if kind is None:
        raise ConfigError(f"what to replay is one of {', '.join(WHAT)}, not {what!r}")
    first, last = _boundary("begin (from)", start), _boundary("end (to)", end)
    if first >= last:
        raise ConfigError(
            f"the interval from {start} to {end} is empty: its end comes after its begin, and is not inside"
        )
    return Ask(first, last, tuple(d for d in ids if not destinations or d in destinations), kind)


def _boundary(name: str, value: str) -> int:
    found = moment(value)
    if found is None or found < 0:
        raise ConfigError(f"the {name} of the interval, {value!r}, is no date and time since 1970, such as 2013-03-01")
    return found


@lru_cache(maxsize=4096)
def moment(value: Any) -> int | None:
    """Returns a time in µs since the epoch, from ISO 8601 (UTC unless it says otherwise) or a number of s, ms, µs or
    ns, told apart by size; None for anything else."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
        else:
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            return round(found.timestamp() * 1e6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e19:
        return None
    size = abs(value)
    for limit, factor in ((1e11, 1e6), (1e14, 1e3), (1e17, 1)):
        if size < limit:
            return round(value * factor)
    return int(value) // 1000


class EventTime:
    """Event time of a record: from the pipeline's `event-time`, or the source's own time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._field = parse(pipeline.event_time) if pipeline.event_time else None

    def __call__(self, record: Record) -> int | None:
        """Returns µs since the epoch; None if the record has no event time."""
        if self._field is None:
            value = record.meta().get(CREATED)
            return moment(int(value)) if value and value.isdigit() else None
        try:
            found = self._field.get(record)
            return moment(found) if isinstance(found, str | bytes | int | float) else None
        except ConduitError:
            return None
