"""Records with a unique mark each, by which they are found again, however the system in between stores them."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from conduit_tasks.connectors.acceptance.report import Unmet
from conduit_tasks.record.record import Origin, Record, data_bytes

ORIGIN = Origin("acceptance", "acceptance", "")
KEYS = 7
"""Different keys among the records."""


@dataclass
class Marked:
    """Makes the records of one test, all different from each other and from those of other tests in the same system."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    made: list[str] = field(default_factory=list)

    def records(self, count: int) -> list[Record]:
        """Makes the next `count` records: structured, with text, numbers, a list and null."""
        out = []
        for n in range(len(self.made), len(self.made) + count):
            mark = f"conduit-{self.nonce}-{n:08d}"
            self.made.append(mark)
            payload = {
                "id": mark,
                "n": n,
                "half": n / 2,
                "text": 'Zoë said "so", twice',
                "tags": ["a", "b"],
                "no": None,
            }
            out.append(Record(b"%d" % n, key=b"key-%d" % (n % KEYS), after=payload, origin=ORIGIN))
        return out

    def count(self, seen: Iterable[Any]) -> Counter[str]:
        """Counts each mark in the values that came back: records, text, bytes, or anything that JSON can express."""
        pattern = re.compile(rb"conduit-%s-[0-9]{8}" % self.nonce.encode())
        found: Counter[str] = Counter()
        for each in seen:
            found.update({mark.decode() for mark in pattern.findall(_text(each))})
        return found

    def missing(self, found: Counter[str]) -> list[str]:
        return [mark for mark in self.made if not found[mark]]


def once(marked: Marked, found: Counter[str], *, again: bool = False) -> str:
    """Returns the number of records, in words. Raises Unmet if one is missing or, unless `again` is set, duplicated."""
    missing = marked.missing(found)
    if missing:
        raise Unmet(f"{len(missing)} of {len(marked.made)} did not come back, the first is {missing[0]}")
    twice = [mark for mark in marked.made if found[mark] > 1]
    if twice and not again:
        raise Unmet(f"{len(twice)} of {len(marked.made)} came back more than once, the first is {twice[0]}")
    return f"{len(marked.made)} records"


def _text(value: Any) -> bytes:
    if isinstance(value, Record):
        return b"\n".join(data_bytes(part) for part in (value.before, value.after))
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


def in_parts(records: Sequence[Record], parts: int) -> list[Sequence[Record]]:
    """Cuts the records into about equal parts, none of them empty."""
    size = max(1, -(-len(records) // parts))
    return [records[at : at + size] for at in range(0, len(records), size)]
