"""Airflow's connections on their way from a driver to its executors.

An executor cannot ask Airflow: it may run on a machine without it, in a process that the driver did not start. So the
driver sends them along with the work, sealed: what Spark sends, keeps or shows of the work cannot be read without the
pipeline's own key, which is in Redis. Neither holds what the other does.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from conduit_tasks import connections
from conduit_tasks.connections import Connection
from conduit_tasks.connectors.connection import named
from conduit_tasks.connectors.registry import destination_class, source_class
from conduit_tasks.errors import BrokerUnavailable, ConfigError
from conduit_tasks.micro_batch.context import open_broker

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.micro_batch.stage import RunAll
    from conduit_tasks.topology import DeadLetterQueue, Pipeline


def names(pipeline: Pipeline) -> list[str]:
    """Returns the names of the Airflow connections that a pipeline's file names, sorted. A plugin that cannot be loaded
    is left out: whoever makes its connector says what is missing."""
    return sorted({name for name in _named(pipeline) if name})


def of_pipeline(pipeline: Pipeline) -> list[Connection]:
    """Returns the connections of a pipeline. Raises ConnectionMissing."""
    return [connections.lookup(name) for name in names(pipeline)]


def _named(pipeline: Pipeline) -> Iterator[str]:
    for source in pipeline.sources:
        yield _name(lambda source=source: named(source_class(source.plugin).spec, source.settings))  # type: ignore[misc]
    for destination in pipeline.destinations:
        yield _name(lambda d=destination: named(destination_class(d.plugin).spec, d.settings))  # type: ignore[misc]
    queues = [pipeline.dead_letters, *(d.dead_letters for d in pipeline.destinations)]
    for queue in queues:
        yield _name(lambda queue=queue: _of_queue(queue))  # type: ignore[misc]


def _of_queue(queue: DeadLetterQueue) -> str:
    return named(destination_class(queue.plugin).spec, queue.settings) if queue.plugin else ""


def _name(find: Callable[[], str]) -> str:
    try:
        return find()
    except ConfigError:
        return ""


def handing_over(context: Context, run_all: RunAll) -> RunAll:
    """Returns a `run_all` that gives executors the connections of the pipeline; `run_all` itself if it has none."""
    found = of_pipeline(context.pipeline)
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
