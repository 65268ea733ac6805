"""Messages that already have records: those that came not long ago, 16 bytes each."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

import numpy as np

MOST = 4_000_000
"""Number of known messages, the newest ones: 64 MiB."""
SIZE = 16


def digest(id: str) -> bytes:
    """Returns a message id in 16 bytes: SQS's ids are UUIDs; any other id is hashed."""
    try:
        return uuid.UUID(id).bytes
    except ValueError:
        return hashlib.blake2b(id.encode(), digest_size=SIZE).digest()


def packed(ids: Iterable[str]) -> bytes:
    """Returns ids as `Known` reads them."""
    return b"".join(map(digest, ids))


class Known:
    """Set of known messages. `pages`: results of `packed`, the newest first; no more of them are asked for than `MOST`
    messages fill."""

    def __init__(self, pages: Iterable[bytes]) -> None:
        taken, size = [], 0
        for page in pages:
            taken.append(page)
            size += len(page)
            if size >= MOST * SIZE:
                break
        halves = np.frombuffer(b"".join(taken)[: MOST * SIZE], ">u8").reshape(-1, 2)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        self._high, self._low = halves[order, 0].astype(np.uint64), halves[order, 1].astype(np.uint64)
        self._new: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._high) + len(self._new)

    def new(self, id: str) -> bool:
        """Returns whether the message is not known yet; from now on it is."""
        own = digest(id)
        if own in self._new:
            return False
        high, low = np.frombuffer(own, ">u8").astype(np.uint64)
        first, last = np.searchsorted(self._high, high, "left"), np.searchsorted(self._high, high, "right")
        at = first + np.searchsorted(self._low[first:last], low)
        if at < last and self._low[at] == low:
            return False
        self._new.add(own)
        return True
