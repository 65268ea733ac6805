"""Sending dead letters again: claims, outcomes, and the keys that wait for them (SEMANTICS X2, X4).

One redrive at a time and destination, under that destination's lease: claim → settle … settle → mark. What a holder
that died had claimed is open again, what it had settled is marked by the next one. Where a destination is "", letters
are from before the fan-out: they are claimed, dispatched to destinations, and marked.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import BrokerBase, portions
from conduit_tasks.broker.dead_index import index_entries

if TYPE_CHECKING:
    from conduit_tasks.delivery.port import DeadLetter

REDRIVEN, AGAIN = "redriven", "dead again"
"""Outcomes of a letter whose record was sent again."""
Letter = tuple[int, int, int, int]
"""(epoch, micro-batch, seq, ord), as `DeadLetter.key`."""
Position = tuple[int, int, int]
"""(micro-batch, seq, ord): where a record stands among all that a destination is given."""


def lease_node(destination: str) -> str:
    """Under whose lease letters of a destination, or ("") of before the fan-out, are redriven."""
    return f"destinations.{destination}" if destination else "redrive"


def letter_field(key: Letter) -> str:
    """A dead letter's field in the index."""
    return "-".join(map(str, key))


def letter_key(field: str) -> Letter:
    """Reads `letter_field`."""
    epoch, m, seq, ordinal = map(int, field.split("-"))
    return epoch, m, seq, ordinal


@dataclass(frozen=True)
class Settled:
    """What became of one letter in a redrive of epoch `epoch`: `redriven`, or `dead again`. `at`: server's clock."""

    key: Letter
    outcome: str
    epoch: int
    at: float
    by: str


class Redrives(BrokerBase):
    """See the module. `token`: of the destination's lease. Raises Fenced, PipelineStopped, InvariantBroken."""

    def claim(self, destination: str, token: int, by: str, letters: Sequence[Letter]) -> tuple[int, list[Letter]]:
        """Begins a redrive: its epoch, and those of `letters` that it may send; the others are dead letters no more."""
        self._give_back(destination, token)
        epoch, out, nonce = 0, list[Letter](), uuid.uuid4().hex
        for portion in list(portions(letters)) or [()]:
            said, *claimed = self.run(
                scripts.CLAIM,
                self._keys(destination, "pipeline", "destination", "lease", "dead", "redrive"),
                token=token,
                nonce=nonce,
                by=" ".join(by.split()) or "unknown",
                letters=[letter_field(key) for key in portion],
            )
            epoch = int(said)
            out += map(letter_key, claimed)
        return epoch, out

    def settle(
        self,
        destination: str,
        token: int,
        step: int,
        settled: Mapping[Letter, str],
        counts: Mapping[str, int],
        *,
        state: Mapping[str, Any] | None = None,
        through: Mapping[str, Position] | None = None,
        park: Mapping[str, Position] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> str:
        """Outcomes of claimed letters and of parked records (`through`: hash of a key → the newest of it). `dead`: the
        new letters, stored by now (invariant 8). `step`: counts these calls from 1. Returns the pipeline's status."""
        answer = self.run(
            scripts.SETTLE,
            self._keys(destination, "pipeline", "destination", "lease", "dead", "redrive", "parked"),
            token=token,
            step=step,
            state="" if state is None else orjson.dumps(dict(state)).decode(),
            counts={name: n for name, n in counts.items() if n},
            settled={letter_field(key): outcome for key, outcome in settled.items()},
            through=positions(through or {}),
            park=positions(park or {}),
            letters=index_entries(dead),
        )
        return str(answer[0])

    def dispatch(
        self,
        token: int,
        step: int,
        settled: Mapping[Letter, str],
        to: Mapping[str, Sequence[DeadLetter]],
        again: Sequence[DeadLetter],
    ) -> None:
        """Outcomes of claimed letters from before the fan-out: `to` says which destinations have them now, `again` what
        failed once more. All new letters are stored by now (invariant 8)."""
        letters = []
        for at, each in enumerate([again, *to.values()]):
            entries = index_entries(each)
            for field, value in zip(entries[::2], entries[1::2]):
                letters += [str(at), field, value]
        self.run(
            scripts.DISPATCH,
            {
                **self._keys("", "pipeline", "destination", "lease", "dead", "redrive"),
                "targets": [self.keys.dead(name) for name in to],
            },
            token=token,
            step=step,
            settled={letter_field(key): outcome for key, outcome in settled.items()},
            letters=letters,
        )

    def settled(self, destination: str) -> list[Settled]:
        """What is settled, and perhaps not marked in the store."""
        out = []
        for field, value in self.scanned(self.keys.redrive(destination)).items():
            if field[:1].isdigit() and value != "claimed":
                outcome, epoch, at, by = value.split("|", 3)
                out.append(Settled(letter_key(field), outcome, int(epoch), int(at) / 1e6, by))
        return sorted(out, key=lambda s: s.key)

    def claimed(self, destination: str) -> set[Letter]:
        """What a redrive under way has claimed, or one that died; empty where its lease is not held."""
        owner = self.field(self.keys.lease(lease_node(destination)), "owner")
        fields = self.scanned(self.keys.redrive(destination)) if owner else {}
        return {letter_key(field) for field, value in fields.items() if value == "claimed" and field[:1].isdigit()}

    def mark(self, destination: str, token: int, letters: Sequence[Letter], *, over: bool = False) -> None:
        """The store knows what became of these; `over`: the redrive ends, and gives back what it did not send."""
        for portion in portions(letters):
            self._mark(destination, token, [letter_field(key) for key in portion])
        if over:
            self._give_back(destination, token)

    def _give_back(self, destination: str, token: int) -> None:
        """Claims that nobody will settle: of the redrive that ends, or of one whose holder is gone."""
        found = self.scanned(self.keys.redrive(destination))
        claims = [field for field, value in found.items() if value == "claimed" and field[:1].isdigit()]
        if found:
            for portion in list(portions(claims)) or [()]:
                self._mark(destination, token, portion, back=True)

    def _mark(self, destination: str, token: int, letters: Sequence[str], *, back: bool = False) -> None:
        keys = self._keys(destination, "lease", "redrive")
        self.run(scripts.MARK, keys, token=token, back=back, letters=letters)

    def parked(self, destination: str) -> dict[str, Position]:
        """Parked keys: hash → position up to which the key is settled; what comes after it waits."""
        found = self.scanned(self.keys.parked(destination))
        return {key: position(text) for key, text in found.items()}

    def unpark(self, destination: str, token: int, key: str, at: Position) -> bool:
        """Lets a key's records flow again, unless its position is not `at` any more."""
        keys = self._keys(destination, "lease", "parked")
        return bool(self.run(scripts.UNPARK, keys, token=token, key=key, position=position_text(at))[0])

    def purge(self, destination: str, letters: Sequence[Letter]) -> list[Letter]:
        """Takes letters out of the index; returns those that stay, because a redrive has claimed them."""
        keys = self._keys(destination, "lease", "dead", "redrive")
        kept: list[str] = []
        for portion in portions(letters):
            kept += self.run(scripts.PURGE, keys, letters=[letter_field(key) for key in portion])
        return [letter_key(field) for field in kept]

    def _keys(self, destination: str, *names: str) -> dict[str, str]:
        keys = self.keys
        every = {
            "pipeline": keys.pipeline,
            "destination": keys.destination(destination),
            "lease": keys.lease(lease_node(destination)),
            "dead": keys.dead(destination),
            "redrive": keys.redrive(destination),
            "parked": keys.parked(destination),
        }
        return {name: every[name] for name in names}


def position_text(at: Position) -> str:
    """A position as the broker keeps it."""
    return "-".join(map(str, at))


def position(text: str) -> Position:
    """Reads `position_text`."""
    m, seq, ordinal = map(int, text.split("-"))
    return m, seq, ordinal


def positions(given: Mapping[str, Position]) -> dict[str, str]:
    """Positions by key, as scripts take them."""
    return {key: position_text(at) for key, at in given.items()}
