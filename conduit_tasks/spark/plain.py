"""Jobs in a Spark context of this process's own: the only module that creates one.

A plain `SparkContext` is enough for Arrow passes in executors; the SQL session is built only if a frame
processor or a Spark-format connector needs it (it costs about two CPU seconds).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConduitError
from conduit_tasks.settings import settings
from conduit_tasks.spark.ended import going_on

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_shipped: str | None = None
"""Id of the application whose executors have the user's code."""


def context() -> SparkContext:
    """Returns the SparkContext, created on first use from spark-submit's settings; then `include` is shipped."""
    from pyspark import SparkConf, SparkContext

    from conduit_tasks.spark import jvm
    from conduit_tasks.spark.shipping import ship

    global _shipped  # noqa: PLW0603 - one context per process
    jvm.connect()
    # Only the JVM knows the settings of spark-submit: a SparkConf made before the JVM is there would hide its master.
    SparkContext._ensure_initialized()
    sc = SparkContext.getOrCreate(SparkConf().setIfMissing("spark.master", "local[*]"))
    sc.setLogLevel("WARN")
    if _shipped != sc.applicationId:
        ship(sc, settings().home)
        _shipped = sc.applicationId
    return sc


class PlainExecutors:
    """Executors of this process's own context, see `session.Executors`."""

    def run_all(self, function: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        sc = context()
        going_on()
        return list(sc.parallelize(pieces, len(pieces)).map(function).collect())

    def parallelism(self) -> int:
        return int(context().defaultParallelism)

    def warm(self) -> None:
        from conduit_tasks.spark.session import nothing

        self.run_all(nothing, [0])

    def session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        context()
        return SparkSession.builder.getOrCreate()

    def lost(self, error: Exception) -> ConduitError | None:
        return None  # the context ends with its driver

    def close(self) -> bool:
        return False  # the JVM ends with the interpreter

    def halt(self, seconds: float) -> bool:
        pyspark = sys.modules.get("pyspark")
        sc = pyspark.SparkContext._active_spark_context if pyspark else None
        # A context that is being made is listed already, but has no JVM context yet; then `run_all` checks by itself.
        if sc is None or getattr(sc, "_jsc", None) is None:
            return True
        deadline = time.monotonic() + seconds
        try:
            sc.cancelAllJobs()
            tracker = sc._jsc.sc().statusTracker()
            while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
        except Exception:  # noqa: BLE001 - the JVM is gone: nobody knows what its executors do
            return False
        return True
