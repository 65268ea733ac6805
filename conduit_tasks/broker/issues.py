"""What people decided about issues (`dead_letters.issues`): acknowledged, muted, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.errors import ConfigError

DecisionState = Literal["acknowledged", "muted", "resolved"]


@dataclass(frozen=True)
class Decision:
    """A decision. `at`: time by the server's clock; `until`: end of a mute, None: until it is decided otherwise."""

    state: DecisionState
    by: str
    at: float
    until: float | None = None


class Issues:
    """Decisions about the issues of one pipeline."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def decisions(self) -> dict[str, Decision]:
        """Returns issue → decision."""
        out = {}
        for id, text in self._access.scanned(self._keys.issues).items():
            found = orjson.loads(text)
            until = found.get("until")
            out[id] = Decision(
                cast(DecisionState, found["state"]), found["by"], int(found["at"]) / 1e6, until and float(until)
            )
        return out

    def decide(self, issue: str, state: DecisionState | Literal["open"], by: str, until: float | None = None) -> None:
        """Stores a decision; "open" takes the last one back. Raises ConfigError if there are too many."""
        said = {"state": state, "by": by, "until": until}
        (answer, *_) = self._access.run(scripts.DECIDE, {"issues": self._keys.issues}, id=issue, said=said)
        if answer == "full":
            raise ConfigError(
                f"pipeline {self._access.pipeline} keeps decisions about 10,000 issues already: open some again"
            )
