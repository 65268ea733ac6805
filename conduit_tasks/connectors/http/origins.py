"""HTTP clients for requests to any origin, as processors make them: one for each origin, of which those used least
recently are closed."""

from __future__ import annotations

from dataclasses import dataclass

from yarl import URL

from conduit_tasks.connectors.http import certificates
from conduit_tasks.connectors.http.client import Answer, Client

MOST = 100
"""Limit of origins whose connections are kept; those of the one that was used least recently are closed."""


@dataclass
class _Kept:
    client: Client
    under_way: int = 0


class Origins:
    """Clients by origin. Use it in one event loop; then `close`. `timeout`: seconds for connecting; `kept`: bytes of an
    answer's body that are kept."""

    def __init__(self, *, guarded: bool, timeout: float | None, kept: int) -> None:
        self._guarded, self._timeout, self._kept = guarded, timeout, kept
        self._origins: dict[URL, _Kept] = {}

    async def exchange(self, url: URL, request: bytes, *, bodiless: bool = False) -> Answer:
        """Sends a whole request to the origin of `url`; see `Client.exchange`. Raises OSError."""
        origin = url.origin()
        # Taken out and put in again: the first one is the one that was used least recently.
        of = self._origins.pop(origin) if origin in self._origins else _Kept(self._client(origin))
        self._origins[origin] = of
        of.under_way += 1
        try:
            return await of.client.exchange(request, bodiless=bodiless)
        finally:
            of.under_way -= 1
            await self._drop()

    async def close(self) -> None:
        """Ends all connections."""
        while self._origins:
            _, of = self._origins.popitem()
            await of.client.close()

    async def _drop(self) -> None:
        spare = len(self._origins) - MOST
        if spare > 0:
            idle = [origin for origin, of in self._origins.items() if not of.under_way]
            for of in [self._origins.pop(origin) for origin in idle[:spare]]:
                await of.client.close()

    def _client(self, origin: URL) -> Client:
        tls = certificates.trusting() if origin.scheme == "https" else None
        return Client(
            origin.raw_host or "",
            origin.port or 0,
            tls,
            guarded=self._guarded,
            timeout=self._timeout,
            kept=self._kept,
        )
