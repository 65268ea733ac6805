"""Receipts of a queue's messages, kept beside the micro-batch that holds them until its ack (SEMANTICS T2).

They lie in the folder of the attempt that read them, so that an attempt that lost deletes nothing. They are removed
with the micro-batch when it is collected, which is after its ack.
"""

from __future__ import annotations

import secrets

from conduit_tasks.spool.spool import Spool


class Kept:
    """`Receipts` in the spool. `folder`: that of the attempt; without one they can only be read."""

    def __init__(self, spool: Spool, folder: str = "", piece: int = 0) -> None:
        self._spool, self._folder, self._piece = spool, folder, piece
        self._made = 0

    def put(self, data: bytes) -> str:
        # A unique name, as the files of rows have: Spark may run a task twice under one token.
        path = f"{self._folder}/receipts-{self._piece:05d}-{self._made:05d}-{secrets.token_hex(4)}"
        self._made += 1
        return self._spool.put(path, data)

    def get(self, name: str) -> bytes:
        return self._spool.get(name)
