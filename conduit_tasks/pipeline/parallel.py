"""Destinations to which several tasks may deliver one micro-batch (`delivery.parallelism`, ADR 27), and why others have
one; and those that may have several micro-batches under way (ADR 41)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from conduit_tasks.pipeline.model import DeliveryKeys
from conduit_tasks.pipeline.pipe_names import ONE_UNCONFIRMED
from conduit_tasks.topology import INDEX_PIPES, Delivery, Destination

ANOTHER = "remove parallelism, or write pipe: stream or resend-multi"


class Reason(NamedTuple):
    """Why one task delivers, and what to do."""

    says: str
    hint: str


def reason(delivery: Delivery | DeliveryKeys, processors: bool, connector: Any = None) -> Reason | None:
    """Returns why these options allow one task only, whatever `parallelism` says; None if they allow several.
    `processors`: whether the destination has any of its own. `connector`: its class; None = it is not asked."""
    if (why := _of_pipe(delivery.pipe)) is not None:
        return why
    once = delivery.guarantee == "effectively-once" and (connector is None or connector.once_by_shards)
    if delivery.guarantee != "at-least-once" and not once:
        says = f"guarantee: {delivery.guarantee} keeps one mark of how far sending has come"
        return Reason(says, "remove parallelism, or write guarantee: at-least-once")
    if delivery.park_keys:
        says = "with park-keys one task decides which records wait"
        return Reason(says, "remove parallelism or park-keys")
    if delivery.breaker is not None:
        says = "with a breaker one task counts what fails in a row, and sends the record that is tried"
        return Reason(says, "remove parallelism or breaker")
    if delivery.order_by == "key" and processors:
        return Reason(
            "a processor of the destination may change the key, whose order is then kept by nobody",
            "move the processors to the source or the pipeline, or remove parallelism",
        )
    return None


def _of_pipe(pipe: str) -> Reason | None:
    if pipe in ONE_UNCONFIRMED:
        return Reason(f"the pipe {pipe} has one record on its way in all", ANOTHER)
    if pipe in INDEX_PIPES:
        return Reason(f"the pipe {pipe} numbers its records, and its numbers have one sender", ANOTHER)
    return None


def one_task(destination: Destination, connector: Any = None) -> str:
    """Returns why one task delivers a micro-batch to the destination; "" if several may. `connector`: its class; None =
    it is not asked."""
    why = reason(destination.delivery, bool(destination.processors), connector)
    if why is not None:
        return why.says
    settings, unsure = destination.settings, ""
    if destination.delivery.parallelism == "auto":
        unsure = must_be(connector, settings)
    return of_class(connector, settings) or unsure


def of_class(connector: Any, settings: Mapping[str, str]) -> str:
    """Returns why the destination's class takes the writes of one task only; "" if those of several."""
    return str(connector.one_task(settings)) if connector is not None else ""


def together(destination: Destination, connector: Any) -> bool:
    """Returns whether several micro-batches may be under way at once at the destination. `connector`: its class."""
    options = destination.delivery
    asked = options.order_by == "none" and options.parallelism != 1 and connector is not None
    return asked and bool(connector.in_any_order(destination.settings)) and not one_task(destination, connector)


def must_be(connector: Any, settings: Mapping[str, str]) -> str:
    """Returns what must be so that several tasks may write, which only the user can know; "" if nothing. A written
    number then counts, and `auto` is one."""
    return str(connector.several_if(settings)) if connector is not None else ""
