"""The version of the pipeline file that is in force, and destinations that have left it (docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import BrokerBase, seconds
from conduit_tasks.pipeline.version import version_of

if TYPE_CHECKING:
    from conduit_tasks.pipeline.topology import Pipeline


@dataclass(frozen=True)
class InForce:
    """A version: `topology` as `pipeline.version` has it; `since`: seconds since the epoch; `by`: a run, or who."""

    digest: str
    topology: Mapping[str, Any]
    since: float
    by: str


class Versions(BrokerBase):
    """What a pipeline runs under."""

    def in_force(self) -> InForce | None:
        """The version that was adopted last; None before the first run, and of state from before versions were kept."""
        found = self.hash(self.keys.version)
        if not found:
            return None
        return InForce(found["digest"], orjson.loads(found["topology"]), seconds(found["since"]) or 0.0, found["by"])

    def adopt(self, pipeline: Pipeline, by: str) -> bool:
        """From here on the pipeline runs under this file; True where it was another before. Destinations that it lacks
        are noted: their state stays, so that they can come back."""
        digest = pipeline.digest()
        if self.field(self.keys.version, "digest") == digest:
            return False
        answer = self.run(
            scripts.ADOPT,
            {"version": self.keys.version, "left": self.keys.left},
            digest=digest,
            topology=version_of(pipeline),
            destinations=[d.id for d in pipeline.destinations],
            by=by,
        )
        return bool(answer[0])

    def left(self) -> dict[str, float]:
        """Destination that has left the file → since when, in seconds since the epoch."""
        return {id: seconds(at) or 0.0 for id, at in self.hash(self.keys.left).items()}
