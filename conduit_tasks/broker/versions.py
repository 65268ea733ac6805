"""Versions of the pipeline file: the one in force, and destinations that have left it, are renamed or are forgotten
(docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.version import version_of
from conduit_tasks.redis_client.connection import reaching
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.topology import Pipeline


@dataclass(frozen=True)
class InForce:
    """A version in force. `topology`: as `pipeline.version` has it; `since`: seconds since the epoch; `by`: the run, or
    who applied it."""

    digest: str
    topology: Mapping[str, Any]
    since: float
    by: str


class Versions:
    """Versions of the pipeline file, and destinations that are renamed or have left it."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def in_force(self) -> InForce | None:
        """Returns the version adopted last; None before the first run, and for state older than versions."""
        found = self._access.hash(self._keys.version)
        if not found:
            return None
        return InForce(found["digest"], orjson.loads(found["topology"]), seconds(found["since"]) or 0.0, found["by"])

    def adopt(self, pipeline: Pipeline, by: str) -> bool:
        """Puts this version of the file in force; returns whether another one was before. Destinations that it lacks
        are noted: their state stays, so that they can come back."""
        digest = pipeline.digest()
        if self._access.field(self._keys.version, "digest") == digest:
            return False
        answer = self._access.run(
            scripts.ADOPT,
            {"version": self._keys.version, "left": self._keys.left},
            digest=digest,
            topology=version_of(pipeline),
            destinations=[d.id for d in pipeline.destinations],
            by=by,
        )
        return bool(answer[0])

    def left(self) -> dict[str, float]:
        """Returns destination that has left the file → time it left, in seconds since the epoch."""
        return {id: seconds(at) or 0.0 for id, at in self._access.hash(self._keys.left).items()}

    def interrupt(self) -> None:
        """Notes that a running pipeline, which is about to be stopped for a change, is to be started again after it."""
        self._access.run(scripts.INTERRUPT, {"pipeline": self._keys.pipeline})

    def interrupted(self) -> bool:
        """Returns whether `interrupt` was called and the pipeline was not started since."""
        return self._access.field(self._keys.pipeline, "resume") is not None

    def check_rename(self, old: str, new: str) -> None:
        """Raises what `rename` would raise now; changes nothing."""
        self._renamed(old, new, self._access.run(scripts.RENAMING, {**self._both(old, new), "each": []}))

    def rename(self, old: str, new: str) -> bool:
        """Renames a destination: all state of `old` becomes that of `new`. Returns False if that was done before.

        One that was cut off is gone on with. Raises ConfigError if the pipeline runs, or if `new` has records of its
        own already.
        """
        both = self._both(old, new)
        for keys in portions(self._run_keys(old)):
            pairs = self._pairs(keys, old, new)
            if not self._renamed(old, new, self._access.run(scripts.RENAMING, {**both, "each": pairs})):
                return False
        last, collected = self._access.numbers("last", "collected")
        # Matched counts of micro-batches that it has confirmed are not needed any more.
        first = max(collected, int(self._access.field(self._keys.destination(old), "cursor") or 0)) + 1
        for some in portions(range(first, last + 1)):
            self._access.run(scripts.MATCHED, {"each": [self._keys.micro_batch(m) for m in some]}, old=old, new=new)
        answer = self._access.run(
            scripts.RENAME,
            {
                **both,
                "version": self._keys.version,
                "destinations": self._keys.destinations,
                "left": self._keys.left,
                "lease": self._keys.lease(Node.destination(old)),
                "each": self._pairs(self._own_keys(old), old, new),
            },
            old=old,
            new=new,
            last=last,
        )
        return self._renamed(old, new, answer)

    def _renamed(self, old: str, new: str, answer: Sequence[Any]) -> bool:
        """Returns whether there was something to rename. Raises ConfigError if it is refused."""
        if answer[0] == "runs":
            raise ConfigError(f"pipeline {self._access.pipeline} was started meanwhile: apply the file again")
        if answer[0] == "taken":
            raise ConfigError(
                f"destination {new} of pipeline {self._access.pipeline} has got records of its own already, so {old} "
                f"cannot go on under that id: put {old} back into the file until it is drained, or --drop {old}"
            )
        return bool(answer[0])

    def forget(self, destination: str) -> bool:
        """Removes the state of a destination that has left the file; returns False if it is in the file."""
        keys = [*self._own_keys(destination), *self._run_keys(destination), self._keys.destination(destination)]
        keys.append(self._keys.lease(Node.destination(destination)))
        own = {"destinations": self._keys.destinations, "left": self._keys.left}
        return all(
            self._access.run(scripts.FORGET, {**own, "each": some}, id=destination)[0] for some in portions(keys)
        )

    def _both(self, old: str, new: str) -> dict[str, str]:
        of = self._keys.destination
        return {"pipeline": self._keys.pipeline, "from": of(old), "to": of(new)}

    def _own_keys(self, id: str) -> list[str]:
        """Returns the keys that a destination has once, but those of its delivery and its lease."""
        keys = self._keys
        one = [
            keys.window,
            keys.dead,
            keys.redo,
            keys.redrive,
            keys.parked,
            keys.turns,
            keys.numbers,
            keys.runs,
            keys.series,
        ]
        return [*(key(id) for key in one), keys.numbers(id, redelivery=True)]

    def _run_keys(self, id: str) -> list[str]:
        """Returns the keys that a destination has for each of its runs: any number."""
        found: set[str] = set()
        with reaching(self._access.redis):
            for by_run in (self._keys.run, self._keys.finished, self._keys.replay):
                found.update(self._access.redis.scan_iter(match=literal(by_run(id, "")) + "*", count=1000))
        return sorted(found)

    def _pairs(self, keys: Sequence[str], old: str, new: str) -> list[str]:
        return [text for key in keys for text in (key, self._under(key, old, new))]

    def _under(self, key: str, old: str, new: str) -> str:
        kind, _, rest = key.removeprefix(self._keys.prefix).partition(":")
        return f"{self._keys.prefix}{kind}:{new}{rest.removeprefix(old)}"


def literal(prefix: str) -> str:
    """Returns a glob pattern that matches the prefix literally."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in prefix)
