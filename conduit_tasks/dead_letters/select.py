"""Selection of dead letters by destination, error class, date, key, micro-batch and id (SEMANTICS X2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.record import jsons
from conduit_tasks.record.units import parse_duration


@dataclass(frozen=True)
class Selection:
    """Conditions on dead letters. All that are given must hold; of several values of one kind, one must match. Empty =
    everything.

    `destination`: `_pipeline` for records that failed before the fan-out. `since` is included, `until` is not. `keys`:
    a raw key's text (base64 if it is not UTF-8), or a structured key's JSON.
    """

    destination: str | None = None
    classes: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    keys: tuple[str, ...] = ()
    micro_batches: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()


def is_key(key: Any, wanted: tuple[str, ...]) -> bool:
    """Returns whether a key, as OpenCDC has it, is one of those that people wrote."""
    if isinstance(key, dict):
        return any(_json(text) == key for text in wanted)
    return key in wanted


def _json(text: str) -> Any:
    try:
        return jsons.loads(text)
    except jsons.JSONDecodeError:
        return None


def selection(*, since: str | None, until: str | None, destination: str | None, **lists: Any) -> Selection:
    """Builds a selection from what people write: dates as text, lists or None. Raises ConfigError."""
    return Selection(
        destination=destination,
        since=moment(since, "since") if since else None,
        until=moment(until, "until") if until else None,
        **{name: tuple(values or ()) for name, values in lists.items()},
    )


def moment(text: str, option: str) -> datetime:
    """Parses a date, a date and time (UTC if no zone is given), or a duration before now. Raises ConfigError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        except ConfigError:
            raise ConfigError(
                f"{option}: {text[:80]!r} is neither a date (2026-01-31, 2026-01-31T12:00:00Z) nor so long ago (2h, 1d)"
            ) from None
        except OverflowError:
            raise ConfigError(f"{option}: {text[:80]!r} ago is before the year 1") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
