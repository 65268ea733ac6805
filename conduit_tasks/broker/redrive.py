"""Redrive of dead letters: claims, outcomes, and the keys that wait for them (SEMANTICS X2, X4).

One redrive at a time per destination, under that destination's lease: claim → settle … settle → mark. If a holder died,
the letters it had claimed are open again, and those it had settled are marked by the next one. Destination "" means
letters from before the fan-out: they are claimed, dispatched to destinations, and marked.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.dead_letters import DeadLetters, Said, index_entries
from conduit_tasks.redis_client.portions import PORTION, portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.record.dead_letter import DeadLetter

REDRIVEN, AGAIN = "redriven", "dead again"
"""Outcomes of a letter whose record was sent again."""
Letter = tuple[int, int, int, int]
"""(epoch, micro-batch, seq, ord), as `DeadLetter.key`."""
Place = tuple[int, int, int]
"""(micro-batch, seq, ord): the place of a record in the order in which a destination gets records."""


def lease_node(destination: str) -> str:
    """Returns the node under whose lease letters of a destination ("": from before the fan-out) are redriven."""
    return Node.destination(destination) if destination else "redrive"


def letter_field(key: Letter) -> str:
    """Returns a dead letter's field in the index."""
    return "-".join(map(str, key))


def letter_key(field: str) -> Letter:
    """Reads `letter_field`."""
    epoch, m, seq, ordinal = map(int, field.split("-"))
    return epoch, m, seq, ordinal


@dataclass(frozen=True)
class Settled:
    """Outcome of one letter in a redrive of epoch `epoch`: `redriven` or `dead again`. `at`: by the server's clock."""

    key: Letter
    outcome: str
    epoch: int
    at: float
    by: str


class Redrives:
    """Operations of a redrive; see the module. `token`: of the destination's lease. Methods raise Fenced,
    PipelineStopped, InvariantBroken."""

    def __init__(self, access: Access, dead_letters: DeadLetters) -> None:
        self._access, self._keys = access, access.keys
        self._dead_letters = dead_letters

    def claim(self, destination: str, token: int, by: str, letters: Sequence[Letter]) -> tuple[int, list[Letter]]:
        """Begins a redrive; returns its epoch, and those of `letters` that it may send: the others are dead letters no
        more."""
        self._give_back(destination, token)
        epoch, out, nonce = 0, list[Letter](), uuid.uuid4().hex
        for portion in list(portions(letters)) or [()]:
            said, *claimed = self._access.run(
                scripts.CLAIM,
                self._named(destination, "pipeline", "destination", "lease", "dead", "redrive"),
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
        through: Mapping[str, Place] | None = None,
        park: Mapping[str, Place] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> str:
        """Settles claimed letters, with their outcomes, and parked records (`through`: hash of a key → the newest
        position settled). `dead`: the new letters, stored by now (invariant 8). `step`: counts these calls from 1.
        Returns the pipeline's status."""
        outcomes = {letter_field(key): outcome for key, outcome in settled.items()}
        said = Said({}, positions(park or {}), index_entries(dead))
        if max(len(outcomes), len(said.park), len(said.letters) // 2) > PORTION:
            epoch, by = self.under_way(destination)
            # Letters settled ahead of this step are claimed no more, so this step must not contain them.
            early = Said(outcomes, said.park, said.letters)
            early = self._dead_letters.write_ahead(
                destination, lease_node(destination), token, early, epoch=epoch, by=by
            )
            outcomes, said = early.closed, replace(early, closed={})
        answer = self._access.run(
            scripts.SETTLE,
            self._named(destination, "pipeline", "destination", "lease", "dead", "redrive", "parked"),
            token=token,
            step=step,
            state="" if state is None else orjson.dumps(dict(state)).decode(),
            counts={name: n for name, n in counts.items() if n},
            settled=outcomes,
            through=positions(through or {}),
            park=said.park,
            letters=said.letters,
        )
        return str(answer[0])

    def under_way(self, destination: str) -> tuple[int, str]:
        """Returns epoch and operator of the redrive under way."""
        found = self._access.read(("HMGET", self._keys.redrive(destination), "epoch", "by"))[0]
        return int(found[0] or 0), found[1] or ""

    def dispatch(
        self,
        token: int,
        step: int,
        settled: Mapping[Letter, str],
        to: Mapping[str, Sequence[DeadLetter]],
        again: Sequence[DeadLetter],
    ) -> int:
        """Settles claimed letters from before the fan-out, with their outcomes. `to`: destination → letters that it has
        now; `again`: letters that failed once more. All new letters are stored by now (invariant 8). A record's letters
        change in one step, unless they are thousands. Returns the next step."""
        of: dict[tuple[int, int], list[str]] = {}
        for at, each in enumerate([again, *to.values()]):
            for letter in each:
                of.setdefault(letter.key[1:3], []).extend((str(at), *index_entries([letter])))
        left = {place: list(keys) for place, keys in groupby(sorted(settled, key=_place), key=_place)}
        while left:
            outcomes: dict[str, str] = {}
            letters: list[str] = []
            while left and len(outcomes) < PORTION and len(letters) < 3 * PORTION:
                place, keys = left.popitem()
                outcomes |= {letter_field(key): settled[key] for key in keys}
                letters += of.pop(place, [])
            self._dispatch(token, step, outcomes, list(to), letters)
            step += 1
        return step

    def _dispatch(self, token: int, step: int, outcomes: dict[str, str], to: list[str], letters: list[str]) -> None:
        """Does one step of `dispatch`. `letters`: place in `to` (from 1; 0: before the fan-out), field and value of
        each letter."""
        while len(letters) > 6 * PORTION:
            some, letters = letters[: 3 * PORTION], letters[3 * PORTION :]
            for at, name in enumerate(["", *to]):
                mine = [text for n in range(0, len(some), 3) if some[n] == str(at) for text in some[n + 1 : n + 3]]
                if mine:
                    self._dead_letters.write_ahead(
                        name, "redrive", token, Said({}, {}, mine), epoch=0, by="", every=True
                    )
        self._access.run(
            scripts.DISPATCH,
            {
                **self._named("", "pipeline", "destination", "lease", "dead", "redrive"),
                "targets": [self._keys.dead(name) for name in to],
            },
            token=token,
            step=step,
            settled=outcomes,
            letters=letters,
        )

    def settled(self, destination: str) -> list[Settled]:
        """Returns the letters that are settled, and perhaps not marked in the store yet."""
        out = []
        for field, value in self._access.scanned(self._keys.redrive(destination)).items():
            if field[:1].isdigit() and value != "claimed":
                outcome, epoch, at, by = value.split("|", 3)
                out.append(Settled(letter_key(field), outcome, int(epoch), int(at) / 1e6, by))
        return sorted(out, key=lambda s: s.key)

    def claimed(self, destination: str) -> set[Letter]:
        """Returns the letters claimed by a redrive under way, or by one that died; empty if the lease is not held."""
        owner = self._access.field(self._keys.lease(lease_node(destination)), "owner")
        fields = self._access.scanned(self._keys.redrive(destination)) if owner else {}
        return {letter_key(field) for field, value in fields.items() if value == "claimed" and field[:1].isdigit()}

    def mark(self, destination: str, token: int, letters: Sequence[Letter], *, over: bool = False) -> None:
        """Notes that the store has the outcomes of these letters. `over`: the redrive ends, and gives back the letters
        that it did not send."""
        for portion in portions(letters):
            self._mark(destination, token, [letter_field(key) for key in portion])
        if over:
            self._give_back(destination, token)

    def _give_back(self, destination: str, token: int) -> None:
        """Gives back claims that will not be settled: of the redrive that ends, or of one whose holder is gone."""
        found = self._access.scanned(self._keys.redrive(destination))
        claims = [field for field, value in found.items() if value == "claimed" and field[:1].isdigit()]
        if found:
            for portion in list(portions(claims)) or [()]:
                self._mark(destination, token, portion, back=True)

    def _mark(self, destination: str, token: int, letters: Sequence[str], *, back: bool = False) -> None:
        keys = self._named(destination, "lease", "redrive")
        self._access.run(scripts.MARK, keys, token=token, back=back, letters=letters)

    def parked(self, destination: str) -> dict[str, Place]:
        """Returns the parked keys: hash → position up to which the key is settled; records after it wait."""
        found = self._access.scanned(self._keys.parked(destination))
        return {key: position(text) for key, text in found.items()}

    def unpark(self, destination: str, token: int, key: str, at: Place) -> bool:
        """Unparks a key, so that its records flow again. Returns False, and leaves it parked, if its position is not
        `at` any more."""
        keys = self._named(destination, "lease", "parked")
        return bool(self._access.run(scripts.UNPARK, keys, token=token, key=key, position=position_text(at))[0])

    def purge(self, destination: str, letters: Sequence[Letter]) -> list[Letter]:
        """Removes letters from the index; returns those that stay, because a redrive has claimed them."""
        keys = self._named(destination, "lease", "dead", "redrive")
        kept: list[str] = []
        for portion in portions(letters):
            kept += self._access.run(scripts.PURGE, keys, letters=[letter_field(key) for key in portion])
        return [letter_key(field) for field in kept]

    def _named(self, destination: str, *names: str) -> dict[str, str]:
        keys = self._keys
        every = {
            "pipeline": keys.pipeline,
            "destination": keys.destination(destination),
            "lease": keys.lease(lease_node(destination)),
            "dead": keys.dead(destination),
            "redrive": keys.redrive(destination),
            "parked": keys.parked(destination),
        }
        return {name: every[name] for name in names}


def _place(key: Letter) -> tuple[int, int]:
    """Returns micro-batch and seq of a letter's record."""
    return key[1:3]


def position_text(at: Place) -> str:
    """Returns a position as the broker stores it."""
    return "-".join(map(str, at))


def position(text: str) -> Place:
    """Reads `position_text`."""
    m, seq, ordinal = map(int, text.split("-"))
    return m, seq, ordinal


def positions(given: Mapping[str, Place]) -> dict[str, str]:
    """Returns positions by key, as scripts take them."""
    return {key: position_text(at) for key, at in given.items()}
