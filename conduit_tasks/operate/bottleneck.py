"""The bottleneck of a pipeline, the node that others wait for, and why: one rule, for `conduit status`, the API and the
pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conduit_tasks.topology import Node

Found = Mapping[str, Any]
"""A status as `operate.status.describe` returns it, or one part of it."""


@dataclass(frozen=True)
class Bottleneck:
    """The node that others wait for. `node`: one with a place in the drawing (`seal` is the spool), "" = the whole
    pipeline; `rule`: name of the rule that found it; `why`: a sentence without figures, so that it changes only if the
    reason does; `waiting`: the nodes that wait for it."""

    node: str
    rule: str
    why: str
    waiting: tuple[str, ...] = ()

    @property
    def trouble(self) -> bool:
        """Whether it does not work, in contrast to one that is only the slowest."""
        return self.rule in TROUBLE


TROUBLE = frozenset({"degraded", "stopped", "breaker", "failing", "down"})


def bottleneck(found: Found) -> Bottleneck | None:
    """Returns the bottleneck, by the first of these rules that applies; None if nobody waits for anybody:

    1. `degraded`, `stopped`: the pipeline is. All of it waits for somebody to start it.
    2. A destination that is behind and cannot deliver, of several the one whose open micro-batch is the oldest:
       `stopped`, `breaker` (open), `failing` (tried again after a pause), `down` (it does not answer, or its task has
       ended with work left).
    3. `failing`: another node whose last attempts failed.
    4. The lag budget is used up, so that nothing more is read: the destination whose open micro-batch is the oldest, of
       several the one with the most records left (`delivering`; `idle` if no task works on it).
    5. `slower`: a destination that is two micro-batches behind or more, as it delivers slower than the sources read.
    6. A micro-batch is open, so that destinations wait for it: `reading` (a source that has not staged it),
       `processing`, `sealing`.
    7. `delivering`, `idle`: a destination that has the last micro-batch open. Nobody waits for it.
    """
    return next((said for rule in RULES if (said := rule(found)) is not None), None)


_FAILING = "its last attempts failed; it is tried again after a pause"


def _stands_still(found: Found) -> Bottleneck | None:
    if found["status"] == "degraded":
        node = _own(found, found["error"]["node"]) if found["error"] else ""
        return Bottleneck(node, "degraded", "the pipeline is degraded, by its first error", _others(found, node))
    if found["status"] == "stopped":
        return Bottleneck("", "stopped", "somebody stopped the pipeline", _others(found))
    return None


def _cannot_deliver(found: Found) -> Bottleneck | None:
    failing = {each["node"] for each in found["recovering"]}
    troubles = ((_node(d), _trouble(d, failing)) for d in _behind(found))
    return next((Bottleneck(node, *said, _held(found)) for node, said in troubles if said), None)


def _trouble(d: Found, failing: set[str]) -> tuple[str, str] | None:
    if d["status"] == "stopped":
        return "stopped", "it is stopped"
    if d["breaker"] and d["breaker"]["opened"]:
        return "breaker", "its breaker is open: nothing is sent until one record was tried"
    if _node(d) in failing:
        return "failing", _FAILING
    if d["outage"]:
        return "down", "it does not answer; it is tried again"
    if d["work"] == "waits":
        return "down", "its task has ended with work left (it was not chosen, or could not go on); a later run does it"
    return None


def _fails(found: Found) -> Bottleneck | None:
    destinations = {_node(d) for d in found["destinations"]}
    for node in (Node(each["node"]) for each in found["recovering"] if each["node"] not in destinations):
        own = _own(found, node)
        return Bottleneck(own, "failing", _FAILING, _others(found, own))
    return None


def _holds_reading(found: Found) -> Bottleneck | None:
    if not (behind := _behind(found)) or not found["held"]:
        return None
    why = "it has the oldest micro-batch that is not delivered, and the lag budget lets nothing more be read"
    return _delivering(behind[0], why, _held(found))


def _slower(found: Found) -> Bottleneck | None:
    if (behind := _behind(found)) and behind[0]["lag"]["micro_batches"] > 1:
        return Bottleneck(_node(behind[0]), "slower", "it delivers slower than the sources read")
    return None


def _unsealed(found: Found) -> Bottleneck | None:
    if not found["unsealed"]:
        return None
    missing = found["unsealed"]["missing"]
    sources = [node for node in missing if Node(node).kind == "sources"]
    rest = [node for node in missing if node not in sources]
    waiting = tuple(_node(d) for d in found["destinations"] if not d["lag"]["micro_batches"])
    if sources:
        return Bottleneck(sources[0], "reading", "the open micro-batch is read from it", (*rest, *waiting))
    if rest:
        return Bottleneck(rest[0], "processing", "it works on the open micro-batch", waiting)
    return Bottleneck("seal", "sealing", "the open micro-batch is about to be sealed", waiting)


def _last(found: Found) -> Bottleneck | None:
    behind = _behind(found)
    return _delivering(behind[0], "it has the last micro-batch that was read", ()) if behind else None


RULES = (_stands_still, _cannot_deliver, _fails, _holds_reading, _slower, _unsealed, _last)


def _delivering(d: Found, why: str, waiting: tuple[str, ...]) -> Bottleneck:
    if d["work"] == "none":
        return Bottleneck(_node(d), "idle", "no task works on it; the next run does", waiting)
    return Bottleneck(_node(d), "delivering", why, waiting)


def _behind(found: Found) -> list[Found]:
    """Returns the destinations that are behind: the oldest open micro-batch first, then most records left."""
    behind = (d for d in found["destinations"] if d["lag"]["micro_batches"])
    return sorted(behind, key=lambda d: (d["cursor"], -d["lag"]["records"]))


def _held(found: Found) -> tuple[str, ...]:
    """Returns the sources, if the lag budget holds them."""
    return tuple(str(Node.source(s["id"])) for s in found["sources"]) if found["held"] else ()


def _own(found: Found, node: str) -> str:
    """Returns the node of the drawing to which this one belongs: a processor to its node, asking and acks to their
    source; "" where it is none of this pipeline, as a handler's."""
    own = Node(node).whole
    if own.kind in {"plan", "acks"}:
        own = Node.source(own.id)
    return str(own) if own in {"seal", *_others(found)} else ""


def _others(found: Found, node: str = "") -> tuple[str, ...]:
    sources = [str(Node.source(s["id"])) for s in found["sources"]]
    nodes = [*sources, *(["processors"] if found["processors"] else []), *map(_node, found["destinations"])]
    return tuple(each for each in nodes if each != node)


def _node(d: Found) -> str:
    return str(Node.destination(d["id"]))
