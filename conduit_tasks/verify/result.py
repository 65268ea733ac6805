"""Results of a seed, as they are printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

PLENTY = 12
"""Number of violations after which a history ends."""


@dataclass
class Found:
    """Findings of a history. `bound`: limit of the repetitions over HTTP that its interruptions explain."""

    loss: int = 0
    inversions: int = 0
    duplicates: int = 0
    bound: int = 0
    unacked: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def plenty(self) -> bool:
        """Returns whether so much is broken that going on would only say the same again."""
        return len(self.violations) >= PLENTY

    def broken(self, said: str) -> None:
        """Adds a violation, each text once."""
        if said not in self.violations:
            self.violations.append(said)


@dataclass
class Result:
    """Result of one seed. `faults`: what was done to whom, and when (seconds); `odd`: errors that the next attempt
    fixed; `history`: the last operations, if something did not hold; `digest`: of all operations. `processes`: whether
    it ran with real processes, which do not repeat exactly."""

    seed: int
    events: int
    size: int
    runs: int
    points: int
    faults: list[str]
    found: Found
    seconds: float
    odd: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    digest: str = ""
    processes: bool = False
    handovers: int = 0
    """Number of nodes that ended because the same node of the next run had taken over."""
    befell: int = 0
    """Number of faults, if they are not listed."""

    def short(self) -> Result:
        """Returns the same without lists."""
        return replace(self, befell=len(self.faults), faults=[], odd=[], history=[])

    @property
    def ok(self) -> bool:
        return not self.found.violations

    @property
    def name(self) -> str:
        return f"process {self.seed}" if self.processes else str(self.seed)

    @property
    def again(self) -> str:
        """Returns the command that runs it again."""
        kind = "--seeds 0 --processes 1 " if self.processes else ""
        return f"conduit verify {kind}--seed {self.seed} --events {self.size}"

    def to_json(self) -> dict[str, Any]:
        """Returns the result in JSON types."""
        found = asdict(self.found)
        violations = found.pop("violations")
        return {
            "seed": self.seed,
            "processes": self.processes,
            "ok": self.ok,
            "counts": {
                "events": self.events,
                "runs": self.runs,
                "points": self.points,
                "faults": self.befell or len(self.faults),
                **found,
                "handovers": self.handovers,
            },
            "violations": violations,
            "seconds": self.seconds,
            "digest": self.digest,
            "again": self.again,
            "faults": self.faults,
            "odd": self.odd,
            "history": self.history,
        }
