"""The index of dead letters: key, time, attempts and error class, under 200 bytes each, written ahead of a step that
has too many; the letters themselves are in the dead-letter store (C14)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Protocol

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.state import DeadEntry
from conduit_tasks.redis_client.connection import reaching
from conduit_tasks.redis_client.portions import PORTION

_CLASS = 40
"""Characters kept of an error class: with the key and Redis's own overhead an entry stays below 200 bytes."""


class Indexed(Protocol):
    """The part of a `DeadLetter` that the index holds."""

    @property
    def key(self) -> tuple[int, int, int, int]:
        """(epoch, micro-batch, seq, ord)."""
        ...

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        ...

    @property
    def attempts(self) -> int:
        """Number of attempts to send it."""
        ...

    @property
    def error_class(self) -> str:
        """Class of the error, short and groupable."""
        ...


def index_entries(letters: Iterable[Indexed]) -> list[str]:
    """Returns field and value of each letter, in a flat list."""
    return [text for each in letters for text in index_entry(each.key, each.at, each.attempts, each.error_class)]


def index_entry(key: tuple[int, int, int, int], at: float, attempts: int, error_class: str) -> tuple[str, str]:
    """Returns field and value of one letter. `at` in seconds since the epoch."""
    return "-".join(map(str, key)), f"{int(at * 1000)}:{attempts}:{error_class[:_CLASS]}"


@dataclass
class Said:
    """Changes that one step makes to dead letters and parked keys.

    `closed`: letter → outcome; `park`: hash of a key → position; `letters`: field and value of each new letter.
    """

    closed: dict[str, str]
    park: dict[str, str]
    letters: list[str]


class DeadLetters:
    """Reads of the index; `confirm` and `seal` write it."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def write_ahead(
        self,
        destination: str,
        lease: str,
        token: int,
        said: Said,
        *,
        epoch: int,
        by: str,
        every: bool = False,
        along: int = PORTION,
    ) -> Said:
        """Writes, ahead of a step, the changes if they are more than go `along` with it (`every`: all of them); returns
        the rest, which the step writes itself. `destination` "": letters from before the fan-out."""
        keys = {
            "lease": self._keys.lease(lease),
            "dead": self._keys.dead(destination),
            "redrive": self._keys.redrive(destination),
            "parked": self._keys.parked(destination),
        }
        while (most := max(len(said.closed), len(said.park), len(said.letters) // 2)) > along or (every and most):
            first = Said(_first(said.closed), _first(said.park), said.letters[: 2 * PORTION])
            self._access.run(scripts.LETTERS, keys, token=token, epoch=epoch, by=by, **asdict(first))
            said = Said(_rest(said.closed), _rest(said.park), said.letters[2 * PORTION :])
        return said

    def entries(self, destination: str = "") -> Iterator[DeadEntry]:
        """Yields the dead letters of a destination ("": before the fan-out), ordered by epoch, micro-batch, seq and
        ord."""
        found = self._access.scanned(self._keys.dead(destination))
        entries = []
        # Letters of a micro-batch that is not sealed yet do not count.
        newest = math.inf if destination else self._access.numbers("sealed")[0]
        for key, value in found.items():
            at, attempts, error_class = value.split(":", 2)
            epoch, m, seq, ordinal = (int(n) for n in key.split("-"))
            if m <= newest:
                entries.append(
                    DeadEntry(
                        epoch, m, seq, ordinal, error_class=error_class, attempts=int(attempts), at=int(at) / 1000
                    )
                )
        yield from sorted(entries)

    def fields(self, destination: str = "") -> list[str]:
        """Returns the fields of the same entries, in no order: `<epoch>-<micro-batch>-<seq>-<ord>`."""
        found = self._access.scanned(self._keys.dead(destination))
        if destination:
            return list(found)
        sealed = self._access.numbers("sealed")[0]
        return [field for field in found if int(field.split("-", 2)[1]) <= sealed]

    def is_dead(self, key: tuple[int, int, int, int], destinations: Sequence[str]) -> bool:
        """Returns whether one of these destinations has a dead letter with this key."""
        field = "-".join(map(str, key))
        return any(self._access.read(*(("HEXISTS", self._keys.dead(each), field) for each in destinations)))

    def count(self, destination: str = "") -> int:
        """Returns the number of dead letters of a destination ("": before the fan-out)."""
        with reaching(self._access.redis):
            return int(self._access.redis.hlen(self._keys.dead(destination)))


def _first(of: dict[str, str]) -> dict[str, str]:
    return dict(islice(of.items(), PORTION))


def _rest(of: dict[str, str]) -> dict[str, str]:
    return dict(islice(of.items(), PORTION, None))
