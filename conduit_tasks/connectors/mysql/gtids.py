"""Sets of global transaction ids, of MariaDB (`0-1-100`) and of MySQL (`uuid:1-100`), as the servers write them.

MariaDB's set is a position: the last transaction of each domain. MySQL's names every transaction that is in it.
"""

from __future__ import annotations

import re

_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")

Ranges = list[tuple[int, int]]
"""Ranges of numbers, both ends included, in order and apart from each other."""


def added(state: str, gtid: str) -> str:
    """Returns a set with one more transaction. Raises ValueError if one of them cannot be read."""
    if _MARIADB.fullmatch(gtid):
        return _positions({**_domains(state), gtid.partition("-")[0]: gtid})
    ranges = _sets(state)
    for source, more in _sets(gtid).items():
        ranges[source] = _joined([*ranges.get(source, []), *more])
    return _text(ranges)


def covers(state: str, other: str) -> bool:
    """Returns whether everything of `other` is in `state`. Raises ValueError if one of them cannot be read."""
    if not other.strip():
        return True
    if _MARIADB.match(other.strip()):
        mine = _domains(state)
        return all(_behind(mine.get(domain, ""), gtid) for domain, gtid in _domains(other).items())
    ranges = _sets(state)
    return all(
        any(low <= first and last <= high for low, high in ranges.get(source, []))
        for source, needed in _sets(other).items()
        for first, last in needed
    )


def normal(text: str) -> str:
    """Returns a set in one spelling: servers break long ones into lines. Raises ValueError."""
    parts = "".join(text.split())
    if not parts:
        return ""
    return _positions(_domains(parts)) if _MARIADB.match(parts) else _text(_sets(parts))


def _domains(state: str) -> dict[str, str]:
    found = {}
    for part in filter(None, "".join(state.split()).split(",")):
        match = _MARIADB.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no GTID of MariaDB")
        found[match[1]] = part
    return found


def _positions(domains: dict[str, str]) -> str:
    return ",".join(domains[domain] for domain in sorted(domains, key=int))


def _behind(mine: str, other: str) -> bool:
    """Returns whether a transaction is another one of its domain, or comes after it. Numbers of two servers are in no
    order (gtid_strict_mode = OFF)."""
    return mine == other or (mine.rpartition("-")[0] == other.rpartition("-")[0] and _number(mine) >= _number(other))


def _number(gtid: str) -> int:
    return int(gtid.rpartition("-")[2]) if gtid else -1


def _sets(state: str) -> dict[str, Ranges]:
    """Returns source → ranges. A source may have a tag behind it (MySQL 8.3), which counts as another source."""
    found: dict[str, Ranges] = {}
    for part in filter(None, "".join(state.split()).lower().split(",")):
        source, *rest = part.split(":")
        if not _UUID.fullmatch(source) or not rest:
            raise ValueError(f"{part!r} is no set of GTIDs")
        of = source
        for each in rest:
            match = _RANGE.fullmatch(each)
            if match is None:
                of = f"{source}:{each}"
                continue
            found.setdefault(of, []).append((int(match[1]), int(match[2] or match[1])))
    return {source: _joined(ranges) for source, ranges in found.items()}


def _joined(ranges: Ranges) -> Ranges:
    out: Ranges = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def _text(ranges: dict[str, Ranges]) -> str:
    parts = []
    for source in sorted(ranges):
        spans = (str(first) if first == last else f"{first}-{last}" for first, last in ranges[source])
        parts.append(":".join([source, *spans]))
    return ",".join(parts)
