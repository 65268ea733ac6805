"""Acks to the sources: up to which micro-batch each may be told, the intent kept before it is told, and the position
moved once after that (C11, C12, invariants 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.state import Ack
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

MESSAGES = "*messages"
"""Pseudo-source of the ack that counts how far handlers were told of messages as a whole. No source has such an id."""


PARTS = 5_000
"""Limit of a source's parts in one ack."""


class Acks:
    """Acks. Each covers whole micro-batches, in order; its intent is durable before the source is told."""

    def __init__(self, access: Access, deliveries: Deliveries) -> None:
        self._access, self._keys = access, access.keys
        self._deliveries = deliveries

    def due(self, source: str, destinations: Sequence[str], ack_on: str) -> bool:
        """Returns whether `begin` has something to do."""
        ack = self._access.hash(self._keys.ack(source))
        return "to" in ack or int(ack.get("m", 0)) < self._confirmed(destinations, ack_on)

    def begin(
        self,
        source: str,
        destinations: Sequence[str],
        ack_on: str,
        token: int | None = None,
        *,
        apart: bool = False,
        through: int | None = None,
    ) -> Ack | None:
        """Records the intent of a source's next ack and returns it; the last one again if it was never committed (C12).

        The ack covers everything up to the lowest cursor of `destinations` (`ack_on` stored: the last sealed
        micro-batch). `apart`: only up to the first micro-batch that has something of the source. `through`: not beyond
        this micro-batch. Returns None if there is nothing to tell.
        `token`: of the lease `acks.<source>`. Raises Fenced if that lease was lost.
        """
        ack = self._access.hash(self._keys.ack(source))
        if "to" in ack:
            m_from, m_to = int(ack["from"]), int(ack["to"])
            position: dict[str, str] = {}
        else:
            m_from, m_to = int(ack.get("m", 0)) + 1, self._confirmed(destinations, ack_on)
            m_to = m_to if through is None else min(m_to, through)
            if m_to < m_from:
                return None
            if apart:
                m_to = next((m for m in range(m_from, m_to) if self._ends(source, m, m)), m_to)
            if source == MESSAGES:
                position = {"": str(m_to)}
            else:
                m_to, position = self._ends_within(source, m_from, m_to)
        stands = self._access.run(
            scripts.BEGIN_ACK,
            {
                "pipeline": self._keys.pipeline,
                "ack": self._keys.ack(source),
                "lease": self._keys.lease(Node.ack(source)),
                "intent": self._keys.intent(source),
                "cursors": [] if ack_on == "stored" else [self._keys.destination(d) for d in destinations],
            },
            **{"from": m_from},
            to=m_to,
            token=token or 0,
            position=[text for pair in position.items() for text in pair],
        )
        if not stands[0]:
            return None
        ack = self._access.hash(self._keys.ack(source))
        if "to" not in ack:
            # Without a lease, another process may have told and committed it between the two reads.
            return None
        intent = self._access.hash(self._keys.intent(source))
        return Ack(int(ack["from"]), int(ack["to"]), {part: orjson.loads(t) for part, t in intent.items()})

    def told(self) -> int:
        """Returns the last micro-batch whose messages handlers were told of as a whole."""
        return int(self._access.hash(self._keys.ack(MESSAGES)).get("m", 0))

    def _ends(self, source: str, m_from: int, m_to: int) -> dict[str, str]:
        """Returns part → token (JSON) at which the last slice of the part ends in these micro-batches."""
        return self._ends_within(source, m_from, m_to)[1]

    def _ends_within(self, source: str, m_from: int, m_to: int) -> tuple[int, dict[str, str]]:
        """Returns the last micro-batch that fits into one ack (at least the first one), and `_ends` up to that one."""
        ends: dict[str, str] = {}
        for some in portions(range(m_from, m_to + 1), 100):
            texts = self._access.read(*(("HGET", self._keys.micro_batch(m), f"slices:{source}") for m in some))
            for m, text in zip(some, texts):
                of = orjson.loads(text) if text else ()
                more = {piece["part"]: orjson.dumps(piece["end"]).decode() for piece in of}
                if ends and len({**ends, **more}) > PARTS:
                    return m - 1, ends
                ends |= more
        return m_to, ends

    def commit(
        self, source: str, ack: Ack, token: int | None = None, observed: Mapping[str, int] | None = None
    ) -> None:
        """Notes that the source has been told, so that the ack is given once (C12).

        `observed`: durations (`metrics.histogram`). Raises Fenced, and InvariantBroken if the ack was not begun.
        """
        keys = {
            "lease": self._keys.lease(Node.ack(source)),
            "ack": self._keys.ack(source),
            "intent": self._keys.intent(source),
            "acked": self._keys.acked(source),
            "figures": self._keys.figures,
        }
        args: Any = {"from": ack.m_from, "to": ack.m_to, "token": token or 0, "observed": dict(observed or {})}
        self._access.run(scripts.COMMIT_ACK, keys, **args)

    def _confirmed(self, destinations: Sequence[str], ack_on: str) -> int:
        sealed, *cursors = self._deliveries.cursors(() if ack_on == "stored" else destinations)
        return min([sealed, *cursors])
