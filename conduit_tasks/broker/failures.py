"""Failures of nodes that may pass by themselves: they are counted and the node is tried again after a growing delay; at
the limit the pipeline is degraded with the first of them (SEMANTICS C16, invariant 9).

Only failures without progress in between are counted. A destination's outage or a nack is no such failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, error_json, seconds, stored_error
from conduit_tasks.broker.state import StoredError

if TYPE_CHECKING:
    from conduit_tasks.topology import Recovery

FIELDS = ("failures", "error", "error_at", "retry_at", "attempts")
"""Fields of a lease hash that tell of failures."""


@dataclass(frozen=True)
class Failing:
    """A node whose last attempts failed. `error`: the first error; `wait`: seconds until it is to be tried again."""

    node: str
    failures: int
    error: StoredError
    wait: float

    def __str__(self) -> str:
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        return f"{self.node} failed {times}, tried again in {self.wait:.1f} s; first error: {self.error.error}"


class Failures:
    """Failures of nodes, kept in their lease hashes."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def note(self, node: str, id: str, error: str, error_class: str, policy: Recovery) -> int:
        """Counts a failure (`id` names it: repeated, it counts once); returns the number of failures in a row.

        Past `policy.max_retries` the pipeline is degraded with the first error.
        """
        answer = self._access.run(
            scripts.RECOVER,
            {"pipeline": self._keys.pipeline, "lease": self._keys.lease(node)},
            id=id,
            error=error_json(node, error, error_class, None),
            min=int(policy.min_delay * 1e6),
            max=int(policy.max_delay * 1e6),
            factor=repr(policy.backoff_factor),
            retries=policy.max_retries,
        )
        return int(answer[0])

    def recovered(self, node: str) -> None:
        """Notes that a node succeeded. Not needed after a stage, seal, confirm or ack, which note it themselves."""
        self._access.run(scripts.RECOVERED, {"lease": self._keys.lease(node)})

    def failing(self, *nodes: str) -> list[Failing]:
        """Returns those of these nodes whose last attempt failed, ordered by the time of their first error."""
        return self.troubles(*nodes)[0]

    def troubles(self, *nodes: str) -> tuple[list[Failing], dict[str, int]]:
        """Returns `failing`, and node → attempts without progress, with one command per node."""
        found = self._access.read(*(("HMGET", self._keys.lease(node), *FIELDS) for node in nodes), ("TIME",))
        secs, micros = found[-1]
        return read_troubles(nodes, found[:-1], int(secs) + int(micros) / 1e6)


def read_troubles(
    nodes: Sequence[str], found: Sequence[Sequence[str | None]], now: float
) -> tuple[list[Failing], dict[str, int]]:
    """Returns `Failures.troubles` by the `FIELDS` of the nodes' lease hashes."""
    out = []
    for node, (failures, text, at, retry_at, _) in zip(nodes, found):
        error = stored_error(text, at)
        if failures and error is not None:
            out.append(Failing(node, int(failures), error, max(0.0, (seconds(retry_at) or 0.0) - now)))
    return sorted(out, key=lambda f: f.error.at), {node: int(of[-1] or 0) for node, of in zip(nodes, found)}
