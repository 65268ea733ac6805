"""Outages of destinations: the last error of each, since when and in whose delivery, kept until the destination has
delivered again.

Kept in the destination's hash, a few hundred bytes; written when a delivery ends because it did not answer, never per
record. Nothing removes it: it holds as long as nothing was confirmed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.logs import masked
from conduit_tasks.topology import Node

ERROR = 500
"""Characters at most of the error that is kept."""


@dataclass(frozen=True)
class Outage:
    """An outage of a destination. `error`: the last one, which may quote its answer; `owner`: of the lease under which
    it came (`micro_batch.context.owner_of`); `since`, `at`: times of the first and the last, by the server's clock."""

    error: str
    owner: str
    since: float
    at: float


class Outages:
    """Records of the destinations' outages."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def note(self, destination: str, token: int, error: str, owner: str) -> None:
        """Notes why a delivery ended. Raises Fenced."""
        self._access.run(
            scripts.MISSED,
            {
                "lease": self._keys.lease(Node.destination(destination)),
                "destination": self._keys.destination(destination),
            },
            token=token,
            error=self._short(destination, masked(error)),
            owner=owner,
        )

    def _short(self, destination: str, error: str) -> str:
        """Returns an error without the name of the destination, which stands beside it."""
        node = Node.destination(destination)
        for words in (
            f"{node} of {self._access.pipeline} is down: ",
            f"{node} of {self._access.pipeline} ",
            f"{node}: ",
        ):
            error = error.removeprefix(words)
        return error[:ERROR]


def outage_of(found: Mapping[str, str]) -> Outage | None:
    """Reads the outage in a destination's hash; None if there is none, or something was confirmed since."""
    if not (text := found.get("outage")):
        return None
    kept = orjson.loads(text)
    if kept["confirmed"] != found.get("confirmed_at", ""):
        return None
    return Outage(kept["error"], kept["owner"], seconds(kept["since"]) or 0.0, seconds(kept["at"]) or 0.0)
