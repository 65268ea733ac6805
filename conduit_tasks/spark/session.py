"""The Spark context of an application: the one place that creates it.

A plain `SparkContext` is enough for Arrow passes in executors; the SQL session is built only where a frame
processor or a Spark-format connector needs it (it costs about two CPU seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from conduit_tasks import logs
from conduit_tasks.settings import Settings, settings
from conduit_tasks.spark.ended import job

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_shipped: str | None = None
"""The application whose executors have the user's code."""

T = TypeVar("T")
R = TypeVar("R")


def context() -> SparkContext:
    """The running SparkContext, created on first use from what spark-submit passed; then `include` is shipped."""
    from pyspark import SparkConf, SparkContext

    from conduit_tasks.spark.shipping import ship

    global _shipped  # noqa: PLW0603 - one context per process
    # Only the JVM knows what spark-submit passed: a SparkConf made before there is one would hide its master.
    SparkContext._ensure_initialized()
    sc = SparkContext.getOrCreate(SparkConf().setIfMissing("spark.master", "local[*]"))
    sc.setLogLevel("WARN")
    if _shipped != sc.applicationId:
        ship(sc, settings().home)
        _shipped = sc.applicationId
    return sc


def session() -> SparkSession:
    """The SQL session over the same context."""
    from pyspark.sql import SparkSession

    context()
    return SparkSession.builder.getOrCreate()


def run_all(function: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
    """`function` over every piece, one Spark task each, answers in order; [] for no pieces (no job is started)."""
    if not pieces:
        return []
    items: list[Any] = list(pieces)
    work = context().parallelize(items, len(items)).map(_InExecutor(settings(), function, logs.fields()))
    with job():
        return work.collect()


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
