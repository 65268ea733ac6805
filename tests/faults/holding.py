"""The demo's receiver, which takes no event beyond as many as a file says, until that is gone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from conduit_tasks.demo import receiver


def held(file: Path, taken: int) -> bool:
    try:
        return taken >= int(file.read_text())
    except FileNotFoundError:
        return False


class Holding(receiver.Receiver):
    """Looks at the file before it takes an event."""

    file: Path

    async def _take(self, key: str, body: bytes) -> web.Response:
        while held(self.file, len(self._seen.accepted)):  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(0.01)
        return await super()._take(key, body)


def serve(arguments: tuple[Path, Sequence[str]]) -> None:
    """Receives until it is killed. `arguments`: the file, and those of the receiver's command line."""
    Holding.file, sys.argv[1:] = arguments
    receiver.Receiver = Holding  # type: ignore[misc]
    receiver.main()
