"""Effects of a changed pipeline file on a pipeline with data in flight: whether each change is safe, and what has to be
decided. Reads; changes nothing.

A change is *safe* if it loses no event, and sends none twice, that would not be lost or sent twice without it. A change
that is not safe names what has to be decided, in the words of `conduit apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.in_flight import InFlight, in_flight
from conduit_tasks.pipeline.version import Difference, alike, differences, version_of
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.state import MicroBatch
    from conduit_tasks.broker.versions import InForce
    from conduit_tasks.topology import Pipeline


@dataclass(frozen=True)
class Change:
    """One change, its effect, and the node it concerns. `decision`: what must be decided for it to be applied; "": it
    is safe."""

    kind: str
    node: str
    what: str
    effect: str
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    decision: str = ""

    @property
    def safe(self) -> bool:
        return not self.decision

    def to_dict(self) -> dict[str, Any]:
        """Returns the change as JSON types."""
        return {**asdict(self), "safe": self.safe}


@dataclass(frozen=True)
class Plan:
    """Answer for one pipeline. `now`: the version in force, None if none is recorded."""

    pipeline: str
    digest: str
    now: InForce | None
    known: bool
    """Whether the broker has state of the pipeline at all."""
    changes: list[Change]

    @property
    def decisions(self) -> list[Change]:
        return [change for change in self.changes if not change.safe]

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON types."""
        return {
            "pipeline": self.pipeline,
            "version": self.digest,
            "in_force": {"version": self.now.digest, "since": self.now.since, "by": self.now.by} if self.now else None,
            "known": self.known,
            "changes": [change.to_dict() for change in self.changes],
            "decisions": len(self.decisions),
        }


def plan_change(pipeline: Pipeline, broker: Broker) -> Plan:
    """Compares a pipeline's file with what is in force and in flight. `broker` may know nothing of the pipeline."""
    if not broker.lifecycle.known():
        return Plan(pipeline.id, pipeline.digest(), None, False, [])
    now = broker.versions.in_force()
    if now is None:
        return Plan(pipeline.id, pipeline.digest(), None, True, _Effects(pipeline, broker, {}).without_version())
    found = [] if now.digest == pipeline.digest() else _Effects(pipeline, broker, now.topology).all()
    return Plan(pipeline.id, pipeline.digest(), now, True, found + left_behind(pipeline, broker))


def left_behind(pipeline: Pipeline, broker: Broker) -> list[Change]:
    """Returns destinations that left the file before, and still have something to deliver, redrive or release."""
    out = []
    for id in broker.versions.left():
        if any(d.id == id for d in pipeline.destinations):
            continue
        waiting, rest = in_flight(broker, id), _exceptions(broker, id)
        if not waiting.micro_batches and not rest:
            continue
        said = "has left the file; put back under its id it goes on where it was"
        if rest:
            said += f"; it has {rest}"
        out.append(Change("left", Node.destination(id), "left before", said, {id: waiting}))
    return out


class _Effects:
    """Words and figures for each difference."""

    def __init__(self, pipeline: Pipeline, broker: Broker, old: Mapping[str, Any]) -> None:
        self._pipeline, self._broker, self._old = pipeline, broker, old
        self._new = version_of(pipeline)
        self._unsealed: MicroBatch | None = broker.micro_batches.unsealed()
        self._next = broker.micro_batches.latest_sealed() + 1

    def all(self) -> list[Change]:
        """Returns every change, as `differences` orders them."""
        self._alike = dict(alike(self._old, self._new))
        return [self._change(difference) for difference in differences(self._old, self._new)]

    def without_version(self) -> list[Change]:
        """Returns the connectors that came or went: there is nothing else to see if no version is recorded."""
        self._alike = {}
        sources, destinations = self._broker.lifecycle.registered()
        now = {Node.source(s) for s in sources} | {Node.destination(d) for d in destinations}
        then = {s.node for s in self._pipeline.sources} | {d.node for d in self._pipeline.destinations}
        gone = [Difference("removed", node) for node in sorted(now - then)]
        return [self._change(d) for d in [*gone, *(Difference("added", node) for node in sorted(then - now))]]

    def _change(self, d: Difference) -> Change:
        node = Node(d.node)
        if node.kind == "pipeline":
            return self._of_pipeline(d)
        return self._source(d, node.id) if node.kind == "sources" else self._destination(d, node.id)

    def _of_pipeline(self, d: Difference) -> Change:
        if d.topic == "spool-path":
            some = self._to_deliver()
            return Change(
                "changed",
                d.node,
                d.topic,
                "what is sealed lies in the old spool, and is looked for in the new one; files left in the old one are "
                "yours to remove",
                some,
                "let it drain first: `conduit apply` does not go on before" if some else "",
            )
        if d.topic == "processors":
            return Change("changed", d.node, _named(d), self._read_effect())
        if d.topic in ("micro-batch", "lag-budget", "order of sources", "event-time"):
            return Change("changed", d.node, d.topic, "concerns what is read from now on")
        if d.topic == "status":
            return Change("changed", d.node, d.topic, "only says how a new pipeline begins")
        return Change("changed", d.node, d.topic, "concerns the next run")

    def _source(self, d: Difference, id: str) -> Change:
        if d.kind == "added":
            known = self._broker.positions.planned(id)
            came_back = "it was here before and goes on at its position" if known else "read from its beginning"
            return Change("added", d.node, "source", came_back)
        if d.kind == "removed":
            return self._source_removed(d, id)
        if d.topic == "plugin":
            return Change(
                "changed",
                d.node,
                d.topic,
                "positions of the old plugin mean nothing to the new one; what is sealed is delivered",
                decision="give it another id, or keep the plugin: a run stops at it",
            )
        if d.topic in ("ack-on", "durability"):
            return Change("changed", d.node, d.topic, "concerns the next ack" if d.topic == "ack-on" else "at once")
        effect = self._read_effect(id)
        if d.topic == "settings":
            effect += "; read on from its position, parts it did not know from their beginning"
        return Change("changed", d.node, _named(d), effect)

    def _source_removed(self, d: Difference, id: str) -> Change:
        broker, said, waits = self._broker, ["nothing more is read from it; what is sealed is delivered"], []
        if self._unsealed and self._unsealed.slices.get(id):
            said.append(f"its share of micro-batch {self._unsealed.number} is not sealed and goes back to it")
        acked = int(broker.access.hash(broker.keys.ack(id)).get("m", 0))
        if acked < self._next - 1:
            waits.append(f"micro-batches {acked + 1} to {self._next - 1} are never acked to it")
        taken = broker.access.hash(broker.keys.ingested(id))
        if held := int(taken.get("last", 0)) - int(broker.positions.planned(id).get("", 0) or 0):
            waits.append(
                f"{held:,} events whose producers were answered wait to be read, and would stay where they are"
            )
        decision = ""
        renamed = Node(self._alike.get(d.node, "")).id
        if renamed:
            waits.append(f"{renamed} looks like it under another id, and would be read from its beginning")
            decision = f"keep the id: a source's position goes with it. Or --drop {id}, and {renamed} begins again"
        elif waits:
            decision = f"--drop {id}"
        return Change("removed", d.node, "source", "; ".join([*said, *waits]), decision=decision)

    def _destination(self, d: Difference, id: str) -> Change:
        waiting = in_flight(self._broker, id)
        flying = {id: waiting} if waiting.micro_batches else {}
        if d.kind == "added":
            if "cursor" in self._broker.access.hash(self._broker.keys.destination(id)):
                lost = f"; {waiting.lost} micro-batches it lacks are collected" if waiting.lost else ""
                return Change(
                    "added", d.node, "destination", f"was here before and goes on at its cursor{lost}", flying
                )
            return Change("added", d.node, "destination", f"begins with micro-batch {self._next}: from now")
        if d.kind == "removed":
            return self._destination_removed(d, id, flying)
        if d.topic == "trigger":
            # ADR 4: the column in the spool says what a sealed micro-batch has for it.
            return Change("changed", d.node, d.topic, f"decides from micro-batch {self._next} on", flying)
        backlog = "applies to what it has not confirmed, too" if flying else "applies from now on"
        if d.topic == "plugin":
            backlog += "; dead letters and counters of the old one stay with the id"
        return Change("changed", d.node, _named(d), backlog, flying)

    def _destination_removed(self, d: Difference, id: str, flying: Mapping[str, InFlight]) -> Change:
        rest = _exceptions(self._broker, id)
        said = "nothing more is delivered to it"
        if rest:
            said += f"; {rest} cannot be sent any more"
        renamed = Node(self._alike.get(d.node, "")).id
        decision = ""
        if renamed:
            decision = f"--rename {id}={renamed} (it goes on where it is) or --drop {id}"
        elif flying or rest:
            decision = f"--drop {id}, or --rename {id}=NEW"
        return Change("removed", d.node, "destination", said, flying, decision)

    def _read_effect(self, source: str | None = None) -> str:
        effect = "concerns what is read from now on"
        of = self._unsealed
        if of is not None and (source is None or of.slices.get(source)):
            effect += f"; micro-batch {of.number} is not sealed and is read again"
        return effect

    def _to_deliver(self) -> dict[str, InFlight]:
        found = {id: in_flight(self._broker, id) for id in self._broker.lifecycle.registered()[1]}
        return {id: flying for id, flying in found.items() if flying.micro_batches}


def _exceptions(broker: Broker, destination: str) -> str:
    """Returns the open dead letters and parked keys, in words."""
    counts = [
        (broker.dead_letters.count(destination), "dead letters"),
        (len(broker.redrives.parked(destination)), "parked keys"),
    ]
    return " and ".join(f"{count:,} {name}" for count, name in counts if count)


def _named(d: Difference) -> str:
    return f"{d.topic} ({', '.join(d.names)})" if d.names else d.topic
