"""Airflow's connections on their way from a driver to its executors, sealed by a key that is in Redis.

An executor cannot ask Airflow: it may run on a machine without it, in a process that the driver did not start. So the
driver sends them along with the work, sealed: what Spark sends, keeps or shows of the work cannot be read without the
pipeline's own key, which is in Redis. Neither holds what the other does.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from conduit_tasks import connections
from conduit_tasks.connections import Connection
from conduit_tasks.connectors.base import Listener
from conduit_tasks.connectors.connection import named
from conduit_tasks.connectors.registry import destination_class, source_class
from conduit_tasks.errors import BrokerUnavailable, ConfigError
from conduit_tasks.micro_batch.context import open_broker

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.micro_batch.stage import RunAll
    from conduit_tasks.topology import Pipeline


def names(pipeline: Pipeline, node: str = "") -> list[str]:
    """Returns the names of the Airflow connections that a node of a pipeline needs, sorted; of all nodes for "". A
    plugin that cannot be loaded is left out: whoever makes its connector says what is missing."""
    return sorted(set(_named(pipeline, node)) - {""})


def of_node(pipeline: Pipeline, node: str) -> list[Connection]:
    """Returns the connections that a node needs. Raises ConnectionMissing."""
    return [connections.lookup(name) for name in names(pipeline, node)]


def _named(pipeline: Pipeline, node: str) -> Iterator[str]:
    for source in pipeline.sources:
        yield _name(source_class, source.plugin, source.settings, here=node in ("", source.node))
    for destination in pipeline.destinations:
        here = node in ("", destination.node)
        yield _name(destination_class, destination.plugin, destination.settings, here=here)
        if here and (queue := destination.dead_letters).plugin:
            yield _name(destination_class, queue.plugin, queue.settings, here=True)
    if (queue := pipeline.dead_letters).plugin:
        # Of records that fail before the fan-out, and of the destinations without a queue of their own.
        yield _name(destination_class, queue.plugin, queue.settings, here=True)


def _name(find: Callable[[str], Any], plugin: str, settings: Mapping[str, str], *, here: bool) -> str:
    try:
        cls = find(plugin)
    except ConfigError:
        return ""
    # A connector with handlers is made wherever changes are told.
    return named(cls.spec, settings) if here or cls.handlers is not Listener.handlers else ""


def handing_over(context: Context, node: str, run_all: RunAll) -> RunAll:
    """Returns a `run_all` that gives executors the connections that the node needs; `run_all` itself if it needs
    none."""
    found = of_node(context.pipeline, node)
    if not found:
        return run_all
    sealed = _seal(context.broker.lifecycle.sealing_key(), found)

    def run(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        return run_all(With(context.pipeline.id, sealed, function), pieces)

    return run


@dataclass(frozen=True)
class With:
    """A function that runs with the connections of its pipeline; picklable."""

    pipeline: str
    sealed: bytes
    function: Callable[[Any], Any]

    @property
    def size(self) -> Any:
        """Size of the function's work, by which `spark.session` decides where it is done; None if it has none."""
        return getattr(self.function, "size", None)

    def __call__(self, piece: Any) -> Any:
        # A worker of a Connect server works for several pipelines, one after the other.
        connections.give(_opened(self.pipeline, self.sealed))
        return self.function(piece)


@lru_cache(maxsize=16)
def _opened(pipeline: str, sealed: bytes) -> dict[str, Connection]:
    from cryptography.fernet import InvalidToken

    with closing(open_broker(pipeline, initialise=False)) as broker:
        key = broker.lifecycle.sealing_key()
    try:
        return connections.loads(_fernet(key).decrypt(sealed).decode())
    except InvalidToken:
        raise BrokerUnavailable(
            f"Redis no longer has the key by which the connections of pipeline {pipeline} were sealed; the next "
            "attempt seals them again"
        ) from None


def _seal(key: str, found: Iterable[Connection]) -> bytes:
    return bytes(_fernet(key).encrypt(connections.dumps(found).encode()))


def _fernet(key: str) -> Any:
    from cryptography.fernet import Fernet

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))
