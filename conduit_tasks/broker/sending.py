"""State that is stored before a record is sent: its number (SEMANTICS O5–O6r) and, for at-most-once, the mark that it
may have been sent (SEMANTICS B8). One command per micro-batch, and one per some hundred records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

_LANE = "lane:"


@dataclass(frozen=True)
class Numbered:
    """Numbers of one micro-batch at one destination. `before`: lane that has records in it → last number before it."""

    epoch: int
    before: Mapping[str, int]


class Sending:
    """The sender's state of a pipe, as far as it must outlive the sender."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def number(
        self,
        destination: str,
        m: int,
        token: int,
        *,
        seal: int,
        counts: Callable[[], Mapping[str, int]],
        known: int,
        stream: int = 0,
    ) -> Numbered:
        """Returns the numbers of micro-batch m, which the first call for it fixes.

        `seal`: the token that sealed it; `counts()`: lane → records in it, only called if the numbers are not fixed
        yet; `known`: number of lanes that there are: if more are stored, all are forgotten and a new epoch begins;
        `stream`: 0, or the epoch of the redelivery, which has numbers of its own.
        """
        key = self._keys.numbers(destination, redelivery=stream > 0)
        [[*of, fixed, earlier]] = self._access.read(("HMGET", key, "stream", "m", "seal", "fixed", "before"))
        fixed = of == [str(stream), str(m), str(seal)] and (fixed or earlier) is not None
        before: dict[str, int] = {}
        lanes: Sequence[tuple[str, int]] = () if fixed else list(counts().items())
        at, epoch = 0, ""
        for some in portions(lanes) if lanes else [()]:
            at += len(some)
            epoch, *last = self._access.run(
                scripts.NUMBER,
                {**self._of(destination), "numbers": key},
                m=m,
                token=token,
                seal=seal,
                stream=stream,
                known=known,
                over=not fixed and at == len(lanes),
                lanes=[text for lane, count in some for text in (lane, str(count))],
            )
            before.update(zip((lane for lane, _ in some), map(int, last)))
        if fixed:
            before = orjson.loads(earlier) if earlier else self._numbered(key, m)
        return Numbered(int(epoch), before)

    def fixed(self, destination: str, m: int) -> bool:
        """Returns whether records of micro-batch m have numbers of its live delivery: one task has begun it."""
        [[stream, of]] = self._access.read(("HMGET", self._keys.numbers(destination, redelivery=False), "stream", "m"))
        return (stream, of) == ("0", str(m))

    def _numbered(self, key: str, m: int) -> dict[str, int]:
        """Returns the last number before micro-batch m of each lane that has records in it."""
        found = ((field, text.split()) for field, text in self._access.scanned(key).items() if field.startswith(_LANE))
        return {field.removeprefix(_LANE): int(before) for field, (of, before, _) in found if of == str(m)}

    def begin(self, destination: str, m: int, token: int, seq: int, *, epoch: int = 0) -> None:
        """Marks that all records of micro-batch m up to `seq` may have been sent from now on."""
        self._access.run(scripts.BEGIN_SEND, self._of(destination), m=m, token=token, epoch=epoch, seq=seq)

    def begun(self, destination: str, m: int, *, epoch: int = 0) -> int:
        """Returns the mark of `begin`; -1 if nothing of micro-batch m was sent."""
        mark = self._access.field(self._keys.destination(destination), "begun")
        begun_epoch, begun_m, seq = (mark or "0:0:-1").split(":")
        return int(seq) if (int(begun_epoch), int(begun_m)) == (epoch, m) else -1

    def _of(self, destination: str) -> dict[str, str]:
        return {
            "pipeline": self._keys.pipeline,
            "destination": self._keys.destination(destination),
            "lease": self._keys.lease(Node.destination(destination)),
        }
