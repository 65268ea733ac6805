"""The micro-batch in front: the first one that is not delivered everywhere and acked, and its stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.looks import DestinationLook, Look
    from conduit_tasks.topology import Pipeline


_STAGES = {"sources": "read", "processors": "processed", "seal": "sealed"}
"""Kind of a node → the stage that it does."""


def front(pipeline: Pipeline, look: Look) -> dict[str, Any] | None:
    """Returns the stages of the micro-batch in front: the first sealed one that some destination has not confirmed or
    some source was not told of, else the open one, else the last one, of which everything is done; None before the
    first. `after`: sealed ones behind it. Each stage tells how much `of` what is `done`; `failed`: the stage of an open
    one whose error degraded the pipeline (`read`, `processed`, `sealed`)."""
    if look.first is not None:
        number, total, sealed_at = look.first
        return _sealed(pipeline, look, number, total, sealed_at)
    if look.open is not None:
        return _open(pipeline, look)
    return _sealed(pipeline, look, look.sealed, None, None) if look.sealed else None


def _sealed(pipeline: Pipeline, look: Look, number: int, total: int | None, sealed_at: float | None) -> dict[str, Any]:
    delivered = {id: _delivered(of, number, total) for id, of in look.destinations.items()}
    acked = sum(source.acked_to >= number for source in look.sources.values())
    return {
        "number": number,
        "state": "done" if total is None else "sealed",
        "since": sealed_at,
        "records": total,
        "after": look.sealed - number,
        "failed": None,
        "read": _all(len(pipeline.sources)),
        "processed": _all(1) if pipeline.processors else None,
        "sealed": _all(1),
        "delivered": delivered,
        "acked": {"done": acked, "of": len(look.sources)},
    }


def _open(pipeline: Pipeline, look: Look) -> dict[str, Any]:
    assert look.open is not None
    of, node = look.open, _failed(look)
    sources = [node for node in of.nodes if Node(node).kind == "sources"]
    read, planned = sum(n for _, n in of.read.values()), [n for n, _ in of.read.values()]
    return {
        "number": of.number,
        "state": "open",
        "since": of.opened_at,
        "records": None if None in planned else max(read, sum(n for n in planned if n is not None)),
        "after": 0,
        "failed": _STAGES.get(Node(node).kind),
        "read": {"done": sum(each not in {node, *of.missing} for each in sources), "of": len(sources)},
        "processed": {"done": int("processors" not in {node, *of.missing}), "of": 1} if pipeline.processors else None,
        "sealed": {"done": 0, "of": 1},
        "delivered": {d.id: {"done": 0, "of": None} for d in pipeline.destinations},
        "acked": {"done": 0, "of": len(look.sources)},
    }


def _failed(look: Look) -> str:
    """Returns the node whose error degraded the pipeline. What it staged is dropped when the pipeline is started."""
    error = look.status.error if look.status.status == "degraded" else None
    return str(Node(error.node).whole) if error is not None else ""


def _all(count: int) -> dict[str, int]:
    return {"done": count, "of": count}


def _delivered(of: DestinationLook, number: int, total: int | None) -> Mapping[str, int | None]:
    """Returns the records of a sealed micro-batch that a destination has confirmed."""
    if of.state.cursor >= number:
        return {"done": total, "of": total}
    division = next((each for each in of.state.divisions if each.micro_batch == number), None)
    return {"done": of.state.confirmed_of(number), "of": total if division is None else division.matched}
