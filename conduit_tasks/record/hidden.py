"""Masked texts, found again wherever they turn up: whole, as JSON, Python or an address writes them, or cut off."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

MASKED = "***"
SHORTEST, CUT, SURE = 4, 12, 512
"""Least length of texts that are looked for, as shorter ones are in everything; of the beginning of one that was cut
off; and of a beginning that is taken for it whatever follows."""
REMEMBERED = 10_000
"""Most texts that are remembered: with more, everything is masked."""


class Hidden:
    """A set of masked texts. `longest`: characters of the longest."""

    def __init__(self) -> None:
        self._short: set[str] = set()
        self._lengths: list[int] = []
        self._long: dict[str, dict[str, None]] = {}
        self._begins: set[str] = set()
        self._count = 0
        self.longest = 0

    def add(self, text: str) -> None:
        """Adds a text, and the forms that messages, JSON and addresses write it in."""
        if len(text) < SHORTEST or text == MASKED or text in self:
            return
        for form in {text, text.strip(), *_written(text)}:
            if len(form) < SHORTEST or form in self:
                continue
            self.longest = max(self.longest, len(form))
            if self._count >= REMEMBERED:
                continue
            self._count += 1
            self._begins.add(form[:SHORTEST])
            if len(form) < CUT:
                self._short.add(form)
                self._lengths = sorted({*self._lengths, len(form)}, reverse=True)
            else:
                self._long.setdefault(form[:CUT], {})[form] = None

    def __contains__(self, text: str) -> bool:
        return text in self._short if len(text) < CUT else text in self._long.get(text[:CUT], ())

    def within(self, text: str) -> str:
        """Returns a text with `***` for each of them in it."""
        if self._count >= REMEMBERED:
            return MASKED if len(text) >= SHORTEST else text
        if not self._count:
            return text
        out, at, done, begins = [], 0, 0, self._begins
        while at <= len(text) - SHORTEST:
            end = self._end(text, at) if text[at : at + SHORTEST] in begins else 0
            if end:
                out += [text[done:at], MASKED]
                at = done = end
            else:
                at += 1
        return "".join([*out, text[done:]]) if done else text

    def _end(self, text: str, at: int) -> int:
        """Returns where one of them ends that begins at a place; 0: none does."""
        end = max((at + n for n in self._lengths if text[at : at + n] in self._short), default=0)
        for each in self._long.get(text[at : at + CUT], ()):
            same = _same(text, at, each)
            # A message that cuts a value off goes on with a quote, dots or nothing.
            if same == len(each) or same >= SURE or not text[at + same : at + same + 1].isalnum():
                end = max(end, at + same)
        return end


def _same(text: str, at: int, other: str) -> int:
    """Returns how many characters from `at` are those that the other text begins with."""
    n = 0
    for size in (1 << 14, 64, 1):
        while n < len(other) and text.startswith(other[n : n + size], at + n):
            n += len(other[n : n + size])
    return n


def _written(text: str) -> set[str]:
    if text.isalnum() and text.isascii():
        return set()
    strict = text.encode(errors="replace").decode()
    as_json = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return {*as_json, repr(text)[1:-1], quote(strict), quote(strict, safe=""), quote_plus(strict)}
