"""The life of a pipeline: schema, registration of its connectors, status, starts, stops and the first error (C8, C15,
C16)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, error_json, seconds, stored_error
from conduit_tasks.broker.failures import Failing, Failures
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.positions import Positions
from conduit_tasks.broker.state import PipelineStatus, Status
from conduit_tasks.errors import ConfigError
from conduit_tasks.redis_client.connection import reaching
from conduit_tasks.topology import Node

SCHEMA = 1
"""Version of the key layout in `keys.py`."""

MIGRATIONS: dict[int, Callable[[Access], None]] = {}
"""Schema version → function that migrates its state to the next version; it may run twice (a crash in between)."""


class Lifecycle:
    """Status of the pipeline, and of its destinations if they are isolated."""

    def __init__(
        self, access: Access, failures: Failures, leases: Leases, micro_batches: MicroBatches, positions: Positions
    ) -> None:
        self._access, self._keys = access, access.keys
        self._failures = failures
        self._leases = leases
        self._micro_batches = micro_batches
        self._positions = positions

    def initialise(self) -> None:
        """Creates the state if there is none, and migrates an older one. Raises ConfigError on a newer one."""
        with reaching(self._access.redis):
            found: Any = self._access.redis.get(self._keys.schema)
            if found is None:
                self._access.redis.hsetnx(self._keys.pipeline, "status", "running")
                self._access.redis.hsetnx(self._keys.pipeline, "created", str(int(self._access.now() * 1e6)))
                self._access.redis.set(self._keys.schema, str(SCHEMA), nx=True)
                return
        version = int(found)
        if version > SCHEMA:
            raise ConfigError(
                f"pipeline {self._access.pipeline} has broker state of schema {version}, this version knows {SCHEMA}: "
                "upgrade conduit-tasks"
            )
        for step in range(version, SCHEMA):
            MIGRATIONS[step](self._access)
            with reaching(self._access.redis):
                self._access.redis.set(self._keys.schema, str(step + 1))

    def sealing_key(self) -> str:
        """Returns the key by which a driver seals what only its executors are to read; it is made up on first use. A
        Redis that has lost it makes up another one."""
        with reaching(self._access.redis):
            self._access.redis.hsetnx(self._keys.pipeline, "sealing", secrets.token_urlsafe(32))
        return self._access.field(self._keys.pipeline, "sealing") or ""

    def known(self) -> bool:
        """Returns whether there is state of the pipeline; creates none."""
        return bool(self._access.read(("EXISTS", self._keys.schema))[0])

    def register(self, sources: Sequence[str], destinations: Sequence[str]) -> None:
        """Registers the file's present connectors. A new destination starts after the last sealed micro-batch."""
        expect, joined = "", ""
        keys = {
            "pipeline": self._keys.pipeline,
            "sources": self._keys.sources,
            "destinations": self._keys.destinations,
            "each": [*map(self._keys.destination, destinations), *map(self._keys.ack, sources)],
        }
        ids = [*destinations, *sources]
        while self._access.run(
            scripts.REGISTER, keys, count=len(destinations), expect=expect, joined=joined, ids=ids
        ) == ["join"]:
            expect, joined = self._join(sources)

    def _join(self, sources: Sequence[str]) -> tuple[str, str]:
        """Returns the pipeline's numbers, and (JSON) the sources' positions after the last sealed micro-batch: the live
        stream of a new destination begins there (X3)."""
        numbers = self._access.numbers("last", "sealed", "unsealed")
        positions = {s: self._positions.planned(s) for s in sources}
        unsealed = self._micro_batches.unsealed()
        for source, of in (unsealed.slices if unsealed else {}).items():
            for s in reversed(of):
                positions.setdefault(source, {})[s.part] = s.start
        return " ".join(map(str, numbers)), orjson.dumps({"batch": numbers[1], "sources": positions}).decode()

    def registered(self) -> tuple[list[str], list[str]]:
        """Returns the ids of the registered sources and destinations."""
        sources, destinations = self._access.read(
            ("SMEMBERS", self._keys.sources), ("SMEMBERS", self._keys.destinations)
        )
        return sorted(sources), sorted(destinations)

    def stored_status(self) -> Status:
        """Returns the stored status: "running" even if nodes fail and are tried again, which only `status` looks up."""
        return cast(Status, self._access.field(self._keys.pipeline, "status") or "running")

    def status(self) -> PipelineStatus:
        """Returns the pipeline's status, with the first error if it stopped or is recovering because of one."""
        state = self._access.hash(self._keys.pipeline)
        running = state.get("status", "running") == "running"
        return pipeline_status(state, *(self._failures.troubles(*self.nodes()) if running else ([], {})))

    def attempts(self) -> dict[str, int]:
        """Returns node → attempts without progress, including the one under way; 0 if the last ended in good order."""
        return self._failures.troubles(*self.nodes())[1]

    def nodes(self) -> list[str]:
        """Returns all nodes that work under a lease, and the planning of each source."""
        return nodes_of(*self.registered())

    def at_work(self) -> list[str]:
        """Returns the nodes whose lease is held."""
        return [node for node in self.nodes() if self._leases.held_for(node)]

    def stop(self, deadline_s: float) -> str:
        """Begins a graceful stop (C15): nothing new is read, records in flight go on. Returns the status."""
        return self._stop(False, deadline_s)

    def force_stop(self) -> str:
        """Stops at once (C16): every holder of a lease gets PipelineStopped at its next call."""
        return self._stop(True, 0.0)

    def _stop(self, force: bool, deadline_s: float) -> str:
        keys = {"scope": self._keys.pipeline}
        return str(self._access.run(scripts.STOP, keys, force=force, deadline=int(deadline_s * 1e6))[0])

    def halt_destination(self, destination: str) -> None:
        """Stops one destination at the user's word (X1): its holder ends at its next call, the cursor stays."""
        self._access.run(scripts.STOP, {"scope": self._keys.destination(destination)}, force=True, deadline=0)

    def stopped(self) -> bool:
        """Ends a graceful stop if nothing is in flight (C3); called after every ack. Returns whether the pipeline is
        stopped."""
        sources, destinations = self.registered()
        answer = self._access.run(
            scripts.STOPPED,
            {
                "pipeline": self._keys.pipeline,
                "each": [*map(self._keys.destination, destinations), *map(self._keys.ack, sources)],
            },
            count=len(destinations),
        )
        return bool(answer[0])

    def start(self, *, destinations: bool = True) -> None:
        """Starts the pipeline again: clears the first error, tripped windows and attempt counters (C6), and starts
        every destination.

        `destinations` False: a destination that is stopped itself stays stopped (X1). After an error or a forceful
        stop, the stages of an unsealed micro-batch are dropped (C16).
        """
        if self._access.hash(self._keys.pipeline).get("status") in ("degraded", "stopped"):
            self._micro_batches.drop_unsealed()
        started = self._access.members(self._keys.destinations) if destinations else []
        windows = [self._keys.window(d) for d in ["", *started]]
        leases = [self._keys.lease(n) for n in self.nodes()]
        self._access.run(
            scripts.START,
            {
                "scope": self._keys.pipeline,
                "each": [*windows, *leases, *map(self._keys.destination, started)],
            },
            windows=len(windows),
            leases=len(leases),
        )

    def fail(self, node: str, error: str, error_class: str, micro_batch: int | None = None) -> bool:
        """Stops the pipeline with this error; returns False if an earlier one is kept (invariant 9)."""
        return self._fail(self._keys.pipeline, "degraded", error_json(node, error, error_class, micro_batch))

    def stop_destination(self, destination: str, error: str, error_class: str, micro_batch: int | None = None) -> bool:
        """Stops one isolated destination with this error (X1); returns False if an earlier one is kept."""
        said = error_json(Node.destination(destination), error, error_class, micro_batch)
        return self._fail(self._keys.destination(destination), "stopped", said)

    def _fail(self, scope: str, status: str, said: dict[str, Any]) -> bool:
        return bool(self._access.run(scripts.FAIL, {"scope": scope}, stopped=status, error=said)[0])

    def start_destination(self, destination: str) -> None:
        """Starts one stopped destination again; its error and its tripped window are cleared."""
        each = [self._keys.window(destination), self._keys.lease(Node.destination(destination))]
        self._access.run(
            scripts.START, {"scope": self._keys.destination(destination), "each": each}, windows=1, leases=1
        )


def nodes_of(sources: Sequence[str], destinations: Sequence[str]) -> list[str]:
    """Returns `Lifecycle.nodes` for these connectors."""
    return [
        *(f"plan.{s}" for s in sources),
        *map(Node.source, sources),
        "processors",
        "seal",
        *map(Node.destination, destinations),
        *map(Node.ack, sources),
    ]


def with_troubles(status: Status, failing: bool, attempts: Mapping[str, int]) -> Status:
    """Returns the status with the troubles of the nodes, which count only while the pipeline runs. `failing`: the last
    attempt of one failed; `attempts`: node → attempts without progress."""
    troubled = failing or any(n > 1 for n in attempts.values())
    return "recovering" if status == "running" and troubled else status


def pipeline_status(
    state: Mapping[str, str], failing: Sequence[Failing], attempts: Mapping[str, int]
) -> PipelineStatus:
    """Returns the status by the pipeline's hash and the troubles of its nodes (`Failures.troubles`), which count only
    while it runs."""
    status = cast(Status, state.get("status", "running"))
    error = stored_error(state.get("error"), state.get("error_at"))
    if status == "running" and failing:
        error = failing[0].error
    return PipelineStatus(with_troubles(status, bool(failing), attempts), error, seconds(state.get("deadline")))
