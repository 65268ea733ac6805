"""Date functions of sprig, with Go's reference layout (`2006-01-02T15:04:05Z07:00`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from conduit_tasks.errors import RecordError
from conduit_tasks.record.cloudevents import unix_nanoseconds

_PARTS: dict[str, Callable[[datetime], str]] = {
    "2006": lambda t: f"{t.year:04d}",
    "January": lambda t: f"{t:%B}",
    "Jan": lambda t: f"{t:%b}",
    "Monday": lambda t: f"{t:%A}",
    "Mon": lambda t: f"{t:%a}",
    "MST": lambda t: t.tzname() or "UTC",
    "Z07:00": lambda t: "Z" if not t.utcoffset() else _offset(t, ":"),
    "Z0700": lambda t: "Z" if not t.utcoffset() else _offset(t, ""),
    "-07:00": lambda t: _offset(t, ":"),
    "-0700": lambda t: _offset(t, ""),
    "-07": lambda t: _offset(t, "")[:3],
    "06": lambda t: f"{t.year % 100:02d}",
    "01": lambda t: f"{t.month:02d}",
    "02": lambda t: f"{t.day:02d}",
    "_2": lambda t: f"{t.day:2d}",
    "15": lambda t: f"{t.hour:02d}",
    "03": lambda t: f"{t.hour % 12 or 12:02d}",
    "04": lambda t: f"{t.minute:02d}",
    "05": lambda t: f"{t.second:02d}",
    "PM": lambda t: "PM" if t.hour >= 12 else "AM",
    "pm": lambda t: "pm" if t.hour >= 12 else "am",
    "1": lambda t: str(t.month),
    "2": lambda t: str(t.day),
    "3": lambda t: str(t.hour % 12 or 12),
    "4": lambda t: str(t.minute),
    "5": lambda t: str(t.second),
}
_LAYOUT = re.compile(r"[.,](0+|9+)(?!\d)|" + "|".join(map(re.escape, _PARTS)))


def _offset(moment: datetime, separator: str) -> str:
    offset = moment.strftime("%z") or "+0000"
    return f"{offset[:3]}{separator}{offset[3:5]}"


def format_date(layout: str, moment: datetime) -> str:
    """Formats `moment` in Go's layout."""

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return _PARTS[found[0]](moment)
        digits = f"{moment.microsecond:06d}000"[: len(found[1])]
        if found[1][0] == "9":
            digits = digits.rstrip("0")
            return f"{found[0][0]}{digits}" if digits else ""
        return f"{found[0][0]}{digits}"

    return _LAYOUT.sub(replace, layout)


def moment_of(value: Any) -> datetime:
    """Returns a time, from a time, unix seconds or RFC 3339 text. Raises RecordError."""
    if isinstance(value, datetime):
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            return datetime.fromtimestamp(unix_nanoseconds(value) / 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise RecordError(f"{value!r} is no time: unix seconds or RFC 3339 was expected")


def _zone(name: str) -> Any:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RecordError(f"there is no time zone {name!r}") from None


TABLE: dict[str, tuple[Callable[..., Any], int, int]] = {
    "now": (lambda: datetime.now(UTC), 0, 0),
    "date": (lambda layout, value: format_date(layout, moment_of(value)), 2, 2),
    "dateInZone": (lambda layout, value, zone: format_date(layout, moment_of(value).astimezone(_zone(zone))), 3, 3),
    "date_in_zone": (lambda layout, value, zone: format_date(layout, moment_of(value).astimezone(_zone(zone))), 3, 3),
    "htmlDate": (lambda value: format_date("2006-01-02", moment_of(value)), 1, 1),
    "unixEpoch": (lambda value: str(int(moment_of(value).timestamp())), 1, 1),
}
