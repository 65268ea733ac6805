"""Durations, sizes and rates as people write them: seconds from `200ms`, `1h30m`, `PT0.2S`; bytes from `256MiB`,
`10MB`; `100/s`, `5/h`."""

from __future__ import annotations

import re

from conduit_tasks.errors import ConfigError

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,  # micro sign
    "μs": 1e-6,  # Greek mu: Go accepts both
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
_PART = r"(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|μs|ms|s|m|h|d|w)"
_GO = re.compile(rf"(?:{_PART}\s*)+")
_NUMBER = r"(\d+(?:[.,]\d+)?)"
_ISO = re.compile(rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE)
LONGEST = 64
"""Most characters of a duration, a size, a rate: longer text is none, or exceeds the range of a number."""
_BYTES = {"": 1}
for _power, _unit in enumerate("kmgtp", 1):
    _BYTES |= {_unit: 1000**_power, f"{_unit}i": 1024**_power}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]i?)?b?", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:/\s*(s|m|h))?")


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration: units ns, us, ms, s, m, h, d (24 h), w, combined as in Go, or ISO 8601 without
    years and months (their length varies). A bare number other than 0 is refused: its unit would be a guess.

    Raises ConfigError.
    """
    text = str(text).strip()
    if text == "0":
        return 0.0
    if len(text) > LONGEST:
        raise ConfigError(f"'{text[:20]}…' is not a duration")
    if _GO.fullmatch(text):
        return round(sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, text)), 9)
    iso = _ISO.fullmatch(text)
    if iso and any(iso.groups()):
        parts = [float(g.replace(",", ".")) if g else 0.0 for g in iso.groups()]
        return round(sum(n * s for n, s in zip(parts, (604_800, 86_400, 3600, 60, 1), strict=True)), 9)
    raise ConfigError(f"'{text}' is not a duration; write for example 200ms, 10s, 5m, 1h30m, 1d or PT0.2S")


def parse_size(text: str | int) -> int:
    """Returns the bytes of a size: `kB MB GB TB` count in thousands, `KiB MiB GiB TiB` in 1,024s, no unit is bytes.

    Raises ConfigError, also for a size that is not a whole number of bytes.
    """
    found = _SIZE.fullmatch(str(text).strip().replace("_", ""))
    if not found or len(str(text)) > LONGEST:
        raise ConfigError(f"'{text}' is not a size; write for example 256MiB, 10MB or a number of bytes")
    size = float(found[1]) * _BYTES[(found[2] or "").lower()]
    if size != int(size):
        raise ConfigError(f"'{text}' is not a whole number of bytes")
    return int(size)


def parse_rate(text: str | float) -> float:
    """Returns the records per second of `100`, `100/s`, `6000/m` or `10/h`. Raises ConfigError; 0 is not a rate."""
    found = _RATE.fullmatch(str(text).strip())
    if not found or len(str(text)) > LONGEST or float(found[1]) == 0:
        raise ConfigError(f"'{text}' is not a rate; write records per second, for example 100, 100/s or 6000/m")
    return float(found[1]) / _SECONDS[found[2] or "s"]


def parse_per(text: str) -> tuple[int, float]:
    """Returns the number and the seconds of `5/h` or `100/30m`: so many in such a time. Raises ConfigError."""
    number, slash, time = str(text).strip().partition("/")
    if len(str(text)) <= LONGEST and slash and number.isdecimal() and int(number) > 0:
        try:
            seconds = parse_duration(time if time[:1].isdigit() else f"1{time}")
        except ConfigError:
            seconds = 0.0
        if seconds > 0:
            return int(number), seconds
    raise ConfigError(f"'{text}' is not so many in a time; write for example 5/h or 100/30m")


def format_duration(seconds: float) -> str:
    """Returns the shortest spelling of a duration: `6h`, `1h30m`, `200ms`."""
    if seconds == 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    out, rest = "", seconds
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SECONDS[unit])
        out += f"{count:g}{unit}" if count else ""
    return out + (f"{rest:g}s" if rest else "")


def format_size(size: int) -> str:
    """Returns a size in the largest binary unit that divides it, else in plain bytes: `256MiB`, `1000B`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{size}B"
