"""The life of a pipeline: schema, registration, status, stops and the first error (C8, C15, C16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import BrokerBase, error_json, seconds, stored_error
from conduit_tasks.broker.connection import reaching
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.recovery import Recovering
from conduit_tasks.broker.state import PipelineStatus, Status
from conduit_tasks.errors import ConfigError

SCHEMA = 1
"""Version of the layout in `keys.py`."""

MIGRATIONS: dict[int, Callable[[BrokerBase], None]] = {}
"""Version → what turns its state into the next version's; each may run twice (a crash in between)."""


class Lifecycle(MicroBatches, Recovering):
    """Status of the pipeline, and of its destinations where they are isolated."""

    def initialise(self) -> None:
        """Makes the state if there is none, migrates an older one. Raises ConfigError on a newer one."""
        with reaching(self.redis):
            found: Any = self.redis.get(self.keys.schema)
            if found is None:
                self.redis.hsetnx(self.keys.pipeline, "status", "running")
                self.redis.hsetnx(self.keys.pipeline, "created", str(int(self.now() * 1e6)))
                self.redis.set(self.keys.schema, str(SCHEMA), nx=True)
                return
        version = int(found)
        if version > SCHEMA:
            raise ConfigError(
                f"pipeline {self.pipeline} has broker state of schema {version}, this version knows {SCHEMA}: "
                "upgrade conduit-tasks"
            )
        for step in range(version, SCHEMA):
            MIGRATIONS[step](self)
            with reaching(self.redis):
                self.redis.set(self.keys.schema, str(step + 1))

    def known(self) -> bool:
        """Whether there is state of the pipeline; makes none."""
        return bool(self.read(("EXISTS", self.keys.schema))[0])

    def register(self, sources: Sequence[str], destinations: Sequence[str]) -> None:
        """The connectors of the file as it is now. A new destination starts behind the last sealed micro-batch."""
        expect, joined = "", ""
        keys = {
            "pipeline": self.keys.pipeline,
            "sources": self.keys.sources,
            "destinations": self.keys.destinations,
            "each": [*map(self.keys.destination, destinations), *map(self.keys.ack, sources)],
        }
        ids = [*destinations, *sources]
        while self.run(scripts.REGISTER, keys, count=len(destinations), expect=expect, joined=joined, ids=ids) == [
            "join"
        ]:
            expect, joined = self._join(sources)

    def _join(self, sources: Sequence[str]) -> tuple[str, str]:
        """Where the sources are behind what is sealed: there the live stream of a new destination begins (X3)."""
        numbers = self.numbers("last", "sealed", "unsealed")
        positions = {s: self.position(s) for s in sources}
        unsealed = self.unsealed()
        for source, of in (unsealed.slices if unsealed else {}).items():
            for s in reversed(of):
                positions.setdefault(source, {})[s.part] = s.start
        return " ".join(map(str, numbers)), orjson.dumps({"batch": numbers[1], "sources": positions}).decode()

    def registered(self) -> tuple[list[str], list[str]]:
        """Ids of the registered sources and destinations."""
        sources, destinations = self.read(("SMEMBERS", self.keys.sources), ("SMEMBERS", self.keys.destinations))
        return sorted(sources), sorted(destinations)

    def stored_status(self) -> Status:
        """The status as it is stored: "running" also where nodes fail and are tried again, which `status` looks up."""
        return cast(Status, self.field(self.keys.pipeline, "status") or "running")

    def status(self) -> PipelineStatus:
        """What the pipeline does, with the first error if it stopped by one."""
        state = self.hash(self.keys.pipeline)
        status = cast(Status, state.get("status", "running"))
        error = stored_error(state.get("error"), state.get("error_at"))
        if status == "running":
            failing, attempts = self.troubles(*self.nodes())
            error = failing[0].error if failing else error
            if failing or any(n > 1 for n in attempts.values()):
                status = "recovering"
        return PipelineStatus(status, error, seconds(state.get("deadline")))

    def attempts(self) -> dict[str, int]:
        """Node → attempts without progress, the one under way included; 0 where the last one left in good order."""
        return self.troubles(*self.nodes())[1]

    def nodes(self) -> list[str]:
        """Everything that works under a lease, and the planning of each source."""
        sources, destinations = self.registered()
        return [
            *(f"plan.{s}" for s in sources),
            *(f"sources.{s}" for s in sources),
            "processors",
            "seal",
            *(f"destinations.{d}" for d in destinations),
            *(f"acks.{s}" for s in sources),
        ]

    def stop(self, deadline_s: float) -> str:
        """Begins a graceful stop (C15): nothing new is read, what is in flight goes on. Returns the status."""
        return self._stop(False, deadline_s)

    def force_stop(self) -> str:
        """Stops at once (C16): every holder of a lease gets PipelineStopped at its next call."""
        return self._stop(True, 0.0)

    def _stop(self, force: bool, deadline_s: float) -> str:
        keys = {"scope": self.keys.pipeline}
        return str(self.run(scripts.STOP, keys, force=force, deadline=int(deadline_s * 1e6))[0])

    def halt_destination(self, destination: str) -> None:
        """Stops one destination at the user's word (X1): its holder ends at its next call, the cursor stays."""
        self.run(scripts.STOP, {"scope": self.keys.destination(destination)}, force=True, deadline=0)

    def stopped(self) -> bool:
        """Ends a graceful stop where nothing is in flight (C3); called after every ack."""
        sources, destinations = self.registered()
        answer = self.run(
            scripts.STOPPED,
            {
                "pipeline": self.keys.pipeline,
                "each": [*map(self.keys.destination, destinations), *map(self.keys.ack, sources)],
            },
            count=len(destinations),
        )
        return bool(answer[0])

    def start(self, *, destinations: bool = True) -> None:
        """Runs again: clears the first error, tripped windows and attempt counters (C6), starts every destination.

        `destinations` False: one that is stopped itself stays so (X1). After an error or a forceful stop, what was
        staged of an unsealed micro-batch is dropped (C16).
        """
        if self.hash(self.keys.pipeline).get("status") in ("degraded", "stopped"):
            self.drop_unsealed()
        started = self.members(self.keys.destinations) if destinations else []
        windows = [self.keys.window(d) for d in ["", *started]]
        leases = [self.keys.lease(n) for n in self.nodes()]
        self.run(
            scripts.START,
            {
                "scope": self.keys.pipeline,
                "each": [*windows, *leases, *map(self.keys.destination, started)],
            },
            windows=len(windows),
            leases=len(leases),
        )

    def fail(self, node: str, error: str, error_class: str, micro_batch: int | None = None) -> bool:
        """Stops the pipeline by this error; False where an earlier one is kept (invariant 9)."""
        return self._fail(self.keys.pipeline, "degraded", error_json(node, error, error_class, micro_batch))

    def stop_destination(self, destination: str, error: str, error_class: str, micro_batch: int | None = None) -> bool:
        """Stops one isolated destination by this error (X1); False where an earlier one is kept."""
        said = error_json(f"destinations.{destination}", error, error_class, micro_batch)
        return self._fail(self.keys.destination(destination), "stopped", said)

    def _fail(self, scope: str, status: str, said: dict[str, Any]) -> bool:
        return bool(self.run(scripts.FAIL, {"scope": scope}, stopped=status, error=said)[0])

    def start_destination(self, destination: str) -> None:
        """One stopped destination goes on; its error and its tripped window are cleared."""
        each = [self.keys.window(destination), self.keys.lease(f"destinations.{destination}")]
        self.run(scripts.START, {"scope": self.keys.destination(destination), "each": each}, windows=1, leases=1)
