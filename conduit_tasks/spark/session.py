"""Where jobs run: the one door to Spark of an application.

Two implementations of one small port: a Spark context of this process's own (`plain`), or a Spark Connect server that
runs already (`connect`), where the environment names one as Spark itself reads it (`SPARK_REMOTE=sc://host:port`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from conduit_tasks import logs
from conduit_tasks.errors import ConduitError
from conduit_tasks.settings import Settings, settings
from conduit_tasks.spark.ended import job
from conduit_tasks.spark.remote import REMOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class Executors(Protocol):
    """What an application asks of Spark."""

    def run_all(self, function: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """`function` over every piece, one Spark task each, answers in order. Both are picklable; never empty."""

    def warm(self) -> None:
        """A first job, so that what comes need not wait for its start. Who has the node's lease is not disturbed."""

    def session(self) -> SparkSession:
        """The SQL session of this node: its views and settings are nobody else's."""

    def lost(self, error: Exception) -> ConduitError | None:
        """The error of ours, where one of Spark's means that Spark itself is gone; None where it is about the work."""

    def halt(self, seconds: float) -> bool:
        """Cancels what runs; whether nothing is at work any more, after so many seconds at most. Any thread."""

    def close(self) -> bool:
        """After the last job; whether nothing is left that the interpreter's exit would have to end."""


_executors: Executors | None = None
_about: tuple[str, str] = ("", "")


def work_for(pipeline: str, node: str) -> None:
    """Says whose jobs those of this process are, before the first one."""
    global _about  # noqa: PLW0603 - one node per process
    _about = (pipeline, node)


def executors() -> Executors:
    """Those of this process, made on first use."""
    global _executors  # noqa: PLW0603 - one context per process
    if _executors is None:
        if os.environ.get(REMOTE):
            from conduit_tasks.spark.connect import ConnectExecutors

            _executors = ConnectExecutors(os.environ[REMOTE], *_about)
        else:
            from conduit_tasks.spark.plain import PlainExecutors

            _executors = PlainExecutors()
    return _executors


def session() -> SparkSession:
    """The SQL session. A plain one costs about two CPU seconds beside the context, so it is made where it is needed."""
    return executors().session()


def run_all(function: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
    """`function` over every piece, one Spark task each, answers in order; [] for no pieces (no job is started)."""
    if not pieces:
        return []
    work = _InExecutor(settings(), function, logs.fields())
    with job():
        return executors().run_all(work, list(pieces))


def warm() -> None:
    """See `Executors.warm`."""
    with job():
        executors().warm()


def nothing(_: Any) -> None:
    """What a first job does."""


def lost(error: Exception) -> ConduitError | None:
    """See `Executors.lost`."""
    return _executors.lost(error) if _executors is not None else None


def close() -> bool:
    """See `Executors.close`."""
    return _executors is not None and _executors.close()


def halt(seconds: float) -> bool:
    """Cancels what Spark does for this process; whether nothing is at work any more, after so many seconds at most."""
    return _executors is None or _executors.halt(seconds)


@dataclass(frozen=True)
class _InExecutor:
    """A function that works with its driver's settings: an executor's environment is its worker's, not its driver's."""

    settings: Settings
    function: Callable[[Any], Any]
    about: Mapping[str, Any]
    """What its log records are about."""

    def __call__(self, piece: Any) -> Any:
        self.settings.use()
        logs.configure()
        with logs.about(**self.about):
            return self.function(piece)
