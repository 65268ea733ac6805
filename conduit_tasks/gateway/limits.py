"""Limits on what producers use of a gateway, also those without a token: heads, time, connections, memory.

Each limit is checked before the work that it bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import parse_duration, parse_size

T = TypeVar("T")

FIELDS = 128
"""Headers and trailers that a request may have."""
PIPELINED = 16
"""Requests of one connection that may wait for the answer to the one before."""
OVERHEAD = 16 << 10
"""Bytes that a request takes besides its body."""
CACHED = 256
"""Characters at most of a text that is cached."""


@dataclass(frozen=True)
class Limits:
    """Limits of a gateway: sizes in bytes, times in seconds."""

    head_size: int = 64 << 10
    """Size of a request besides its body: first line, headers, trailers, and more chunk framing than is usual; a larger
    one is answered with 431."""
    head_timeout: float = 10.0
    """Time for a TLS handshake, and for a head to arrive, from the connection or the first byte on."""
    body_timeout: float = 30.0
    """Time for a body and its trailers to arrive."""
    answer_timeout: float = 30.0
    """Time in which a client reads answers that wait for it to do so, also those of a connection that is closed."""
    connections: int = 4_096
    """Connections at most, counted from their acceptance, before any TLS."""
    connections_per_peer: int = 1_024
    """Connections at most from one address; a proxy counts as one."""
    memory: int = 256 << 20
    """Memory of requests that were received and not answered. Half of it is divided equally among the pipelines."""

    @classmethod
    def of(cls, **given: str) -> Limits:
        """Makes limits from the command's options. Raises ConfigError, which names the option at fault."""
        return cls(
            _read(given, "head_size", parse_size),
            _read(given, "head_timeout", parse_duration),
            _read(given, "body_timeout", parse_duration),
            _read(given, "answer_timeout", parse_duration),
            _read(given, "connections", int),
            _read(given, "connections_per_peer", int),
            _read(given, "memory", parse_size),
        )


def _read(given: dict[str, str], name: str, parse: Callable[[Any], T]) -> T:
    shown = f"--{name.replace('_', '-')} (CONDUIT_GATEWAY_{name.upper()})"
    try:
        value = parse(given[name])
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"conduit gateway: {shown}: {error}") from None
    if not value > 0:  # type: ignore[operator]
        raise ConfigError(f"conduit gateway: {shown} must be more than 0")
    return value


DEFAULT = Limits()


class Room:
    """Memory of requests. Half of it belongs to the pipelines in equal shares, the other half is common: the producers
    of one pipeline cannot take the share of another."""

    def __init__(self, most: int) -> None:
        self._most, self._own = most, most // 2
        self._of: Counter[str] = Counter()
        self._common = 0
        """Bytes that pipelines use beyond their shares."""

    @property
    def used(self) -> int:
        return sum(self._of.values())

    def serve(self, pipelines: Iterable[str]) -> None:
        """Divides the shares among these pipelines from now on."""
        self._of = Counter({pipeline: used for pipeline, used in self._of.items() if used})
        self._own = self._most // 2 // max(1, len(set(pipelines)))
        self._common = sum(map(self._beyond, self._of.values()))

    def take(self, pipeline: str, size: int) -> bool:
        """Takes memory for a request of this pipeline and returns True, or returns False if there is not enough."""
        now = self._of[pipeline]
        if now + size > self._own:
            common = self._common + self._beyond(now + size) - self._beyond(now)
            if common > self._most - self._most // 2:
                return False
            self._common = common
        self._of[pipeline] = now + size
        return True

    def give(self, pipeline: str, size: int) -> None:
        """Gives back memory that was taken."""
        now = self._of[pipeline]
        if now > self._own:
            self._common += self._beyond(now - size) - self._beyond(now)
        self._of[pipeline] = now - size

    def _beyond(self, used: int) -> int:
        return max(0, used - self._own)
