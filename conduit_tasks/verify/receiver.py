"""A receiver that remembers every record it was ever sent, and answers as badly as it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from conduit_tasks.connectors.base import DELIVERED, Option, Outcome, RecordDestination, Spec
from conduit_tasks.record.record import Record

PLUGIN = "remembering"
TIMEOUT = 2.0
"""Seconds that its sender waits for an answer."""


@dataclass
class Memory:
    """State of a receiver. `taken`: (id, source, n), in order of arrival, repetitions too."""

    random: Random
    refused: frozenset[int] = frozenset()
    """Classes of records that it answers with 400."""
    lossy: float = 0.0
    """Probability that it takes a record and its answer is lost."""
    busy: float = 0.0
    """Probability that it answers 503."""
    silent: float = 0.0
    """Probability that it takes a record and never answers."""
    slow: float = 0.05
    """Seconds that each half of a send takes, at most."""
    endless: float = 0.0
    """Probability that closing a connection never ends."""
    taken: list[tuple[str, str, int]] = field(default_factory=list)
    lost_answers: int = 0


memory = Memory(Random(0))
"""The one receiver of this process."""


class Remembering(RecordDestination):
    """Sends to `memory`; each send takes some time, so that others overtake it."""

    spec = Spec(
        PLUGIN,
        "Remembers what it was sent, for `conduit verify`.",
        (Option("alone", "whether one task sends", default="false"),),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)

    @classmethod
    def one_task(cls, settings: Mapping[str, str]) -> str:
        return "it is told so" if settings.get("alone") == "true" else ""

    async def send(self, record: Record) -> Outcome:
        event, began = record.after if isinstance(record.after, dict) else {}, time.monotonic()
        await asyncio.sleep(memory.random.uniform(0.02, 1.0) * memory.slow)
        if memory.random.random() < memory.busy:
            return Outcome("failed", "busy", 503)
        if event.get("c") in memory.refused:
            return Outcome("refused", f"no {event.get('c')} here", 400)
        memory.taken.append((record.id, str(event.get("s")), int(event.get("n", -1))))
        try:
            await asyncio.sleep(memory.random.uniform(0.02, 1.0) * memory.slow)
        except asyncio.CancelledError:
            # Its process stood still meanwhile, because others moved: the answer came too late.
            memory.lost_answers += time.monotonic() - began >= TIMEOUT
            raise
        if memory.silent and memory.random.random() < memory.silent:
            memory.lost_answers += 1
            await asyncio.Event().wait()
        if memory.random.random() < memory.lossy:
            memory.lost_answers += 1
            return Outcome("failed", "no answer")
        return DELIVERED

    async def close(self) -> None:
        if memory.endless and memory.random.random() < memory.endless:
            await asyncio.Event().wait()


DESTINATION = Remembering
