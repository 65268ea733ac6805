"""The events of the benchmarks: JSON Lines of 225 bytes, seeded."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("click", "view", "buy", "leave")


def write_events(path: Path, count: int, size: int = 225, seed: int = 1) -> Path:
    """Writes `count` events of `size` bytes each (newline included); a file already complete is kept."""
    if path.exists() and path.stat().st_size == count * size:
        return path
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, count, 10_000):
            lines = []
            for i in range(start, min(start + 10_000, count)):
                kind = KINDS[rng.randrange(4)]
                user, amount = rng.randrange(100_000), rng.random()
                head = f'{{"id":{i},"kind":"{kind}","user":"u{user:05d}","amount":{amount:.6f},"pad":"'
                lines.append(head + "x" * (size - len(head) - 3) + '"}\n')
            file.write("".join(lines).encode())
    return path


def count_of(path: Path, what: bytes) -> int:
    """How often `what` stands in a file whose lines are shorter than 64 KiB."""
    found, kept = 0, b""
    with path.open("rb") as file:
        while block := file.read(8 << 20):
            found += (kept + block).count(what)
            kept = block[-(len(what) - 1) :] if len(what) > 1 else b""
    return found
