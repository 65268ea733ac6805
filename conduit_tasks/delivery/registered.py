"""Handlers that connectors and processors register in code (`Listener.handlers`), beside those in the pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.base import Listener
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.delivery.handlers import Notify, Of, StateChange
    from conduit_tasks.topology import Destination, Pipeline, Processor, Source

STATES = ("acked", "nacked")


@dataclass(frozen=True)
class Registered:
    """One function. `source`: the source whose messages it is called for; "" for all sources."""

    of: Of
    state: str
    name: str
    call: Notify
    source: str = ""

    def takes(self, change: StateChange) -> bool:
        """Returns whether the function is called for this change."""
        return not self.source or change.source == self.source


def registered(pipeline: Pipeline, node: str) -> Iterator[Registered]:
    """Yields the functions of a whole pipeline; of its destinations only those of `node`. Raises ConfigError if a
    plugin is missing, or registers something that is not a handler."""
    for source in pipeline.sources:
        yield from _of(source, _connector(pipeline, source), "message", source.id)
        for processor in source.processors:
            yield from _of(processor, _processor(processor), "message", source.id)
    for processor in pipeline.processors:
        yield from _of(processor, _processor(processor), "message")
    for destination in pipeline.destinations:
        if destination.node == node:
            yield from _of(destination, _connector(pipeline, destination), "destination")
            for processor in destination.processors:
                yield from _of(processor, _processor(processor), "destination")


def _of(owner: Any, listener: Listener | None, of: Of, source: str = "") -> Iterator[Registered]:
    if listener is None:
        return
    for state, function in listener.handlers().items():
        name = f"{owner.plugin} ({owner.id})"
        if state not in STATES or not callable(function):
            raise ConfigError(
                f"{name} registers {function!r} for {state!r}; `handlers()` gives a function for acked, nacked or both"
            )
        yield Registered(of, state, f"of {name}", function, source)


def _connector(pipeline: Pipeline, owner: Source | Destination) -> Listener | None:
    """Returns the connector, or None. It is made only if its class has handlers: most have none."""
    from conduit_tasks.connectors.connection import made
    from conduit_tasks.connectors.registry import destination_class, source_class
    from conduit_tasks.topology import Source

    find: Callable[[str], Any] = source_class if isinstance(owner, Source) else destination_class
    cls = find(owner.plugin)
    if not _listens(cls):
        return None
    connector = made(cls, owner.settings)
    connector.pipeline, connector.connector = pipeline.id, owner.id
    return connector if isinstance(connector, Listener) else None


def _processor(processor: Processor) -> Listener | None:
    from conduit_tasks.processors.registry import build, variant

    return build(processor) if _listens(variant(processor.plugin, processor.settings)) else None


def _listens(cls: type) -> bool:
    return getattr(cls, "handlers", Listener.handlers) is not Listener.handlers
