"""What producers may take of a gateway, also those without a token: heads, time, connections, memory.

Each is looked at before the work that it bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.units import parse_duration, parse_size

T = TypeVar("T")

FIELDS = 128
"""Headers and trailers of a request."""
PIPELINED = 16
"""Requests of one connection that may wait for the answer to the one before."""
OVERHEAD = 16 << 10
"""Bytes that a request takes beside its body."""
CACHED = 256
"""Characters of a text that a cache remembers."""


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    head_size: int = 64 << 10
    """Of what comes beside a request's body: first line, headers, trailers, and what parts chunks beyond what is usual;
    more is answered with 431."""
    head_timeout: float = 10.0
    """In which a TLS handshake is done, and a head has to arrive, from the connection or the first byte on."""
    body_timeout: float = 30.0
    """In which a body has to arrive, and its trailers."""
    connections: int = 4_096
    """From being accepted on, before any TLS."""
    connections_per_peer: int = 1_024
    """From one address; a proxy is one."""
    memory: int = 256 << 20
    """Of requests that were received and not answered. Half of it is parted equally among the pipelines."""

    @classmethod
    def of(cls, **given: str) -> Limits:
        """From the command's options. Raises ConfigError that names the one at fault."""
        return cls(
            _read(given, "head_size", parse_size),
            _read(given, "head_timeout", parse_duration),
            _read(given, "body_timeout", parse_duration),
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
    """The memory of requests. Half of it is the pipelines' own, in equal shares, and the other half is anybody's: one
    pipeline's producers cannot take what another's need."""

    def __init__(self, most: int) -> None:
        self._most, self._own = most, most // 2
        self._of: Counter[str] = Counter()
        self._common = 0
        """What pipelines use beyond their shares."""

    @property
    def used(self) -> int:
        return sum(self._of.values())

    def serve(self, pipelines: Iterable[str]) -> None:
        """These have shares from now on."""
        self._of = Counter({pipeline: used for pipeline, used in self._of.items() if used})
        self._own = self._most // 2 // max(1, len(set(pipelines)))
        self._common = sum(map(self._beyond, self._of.values()))

    def take(self, pipeline: str, size: int) -> bool:
        """Whether so much is there for a request of this pipeline; it is taken then."""
        now = self._of[pipeline]
        if now + size > self._own:
            common = self._common + self._beyond(now + size) - self._beyond(now)
            if common > self._most - self._most // 2:
                return False
            self._common = common
        self._of[pipeline] = now + size
        return True

    def give(self, pipeline: str, size: int) -> None:
        """Gives back what was taken."""
        now = self._of[pipeline]
        if now > self._own:
            self._common += self._beyond(now - size) - self._beyond(now)
        self._of[pipeline] = now - size

    def _beyond(self, used: int) -> int:
        return max(0, used - self._own)
