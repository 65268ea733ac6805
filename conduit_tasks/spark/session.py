"""Jobs of an application, its only interface to Spark: which of them a child process does, a Spark context or a Connect
server, and when Spark's start begins.

One small port has two implementations in Spark: a Spark context of this process's own (`plain`), or a Spark Connect
server that runs already (`connect`), if the environment names one as Spark itself reads it
(`SPARK_REMOTE=sc://host:port`). A third, without Spark, does what is small in a child process (`local`). So neither the
JVM nor the session is asked for before some work needs it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from conduit_tasks import logs
from conduit_tasks.errors import ConduitError
from conduit_tasks.settings import Settings, settings
from conduit_tasks.spark import jvm, local
from conduit_tasks.spark.ended import job
from conduit_tasks.spark.remote import REMOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_tasks.spark.local import LocalExecutors

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


Ending = Callable[[str, str], AbstractContextManager[None]]
"""Returns a block that a forceful stop of the pipeline ends, with this worker; picklable, called with pipeline and
node."""


class Executors(Protocol):
    """Port by which an application uses Spark."""

    def run_all(self, function: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Calls `function` with every piece, one Spark task each; returns the answers in order. Both are picklable;
        `pieces` is never empty."""

    def warm(self) -> None:
        """Runs a first job, so that later ones need not wait for Spark's start. Does not disturb the holder of the
        node's lease."""

    def parallelism(self) -> int:
        """Returns Spark's default parallelism: the number of cores that it has, unless it was set."""

    def session(self) -> SparkSession:
        """Returns the SQL session of this node, with views and settings of its own."""

    def lost(self, error: Exception) -> ConduitError | None:
        """Returns our error if Spark's error means that Spark itself is gone; None if it is about the work."""

    def halt(self, seconds: float) -> bool:
        """Cancels running jobs and waits `seconds` at most; returns whether nothing is at work any more. Any thread."""

    def close(self) -> bool:
        """Closes after the last job; returns whether the interpreter's exit has nothing left to end."""


_executors: Executors | None = None
_local: LocalExecutors | None = None
_about: tuple[str, str] = ("", "")
_ending: Ending | None = None


def work_for(pipeline: str, node: str, ending: Ending | None = None) -> None:
    """Sets the pipeline and node of this process's jobs, and what ends a worker that the pipeline has no use for any
    more; called before the first one."""
    global _about, _ending
    _about, _ending = (pipeline, node), ending


def prepare() -> None:
    """Prepares the child process that does small work, if the settings want one; otherwise begins Spark's start. To be
    called while this process has one thread."""
    global _local  # noqa: PLW0603 - one per process
    if _local is not None:
        _local.close()
        _local = None
    if settings().small_records and settings().small_bytes:
        _local = local.made()
    if _local is None:
        begin()


def begin() -> None:
    """Begins Spark's start, and does not wait for it: work that is not small is in sight."""
    jvm.begin()


def foresees() -> Callable[[], None] | None:
    """Returns `begin` if that would start anything; None if not."""
    return begin if jvm.prepared() else None


def executors() -> Executors:
    """Returns the executors of this process, made on first use."""
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
    """Returns the SQL session. A plain one costs about two CPU seconds besides the context, so it is made only if it is
    needed."""
    return executors().session()


def run_all(function: Callable[[T], R], pieces: Sequence[T]) -> list[R]:
    """Calls `function` with every piece, one Spark task each; returns the answers in order. [] for no pieces (no job is
    started). If the function says that its work is small (it has a `size`, see `micro_batch.size`), the application's
    child process does it."""
    if not pieces:
        return []
    work = _InExecutor(settings(), function, logs.fields(), _ending)
    size = getattr(function, "size", None)
    with job():
        if _local is not None and size is not None and size.small(len(pieces)):
            _say("small work is done beside the driver, without Spark")
            return _local.run_all(work, list(pieces))
        if _local is not None:
            _say("work that is not small is done in Spark")
        return executors().run_all(work, list(pieces))


def parallelism() -> int:
    """Returns Spark's default parallelism; starts Spark if it does not run yet."""
    with job():
        return executors().parallelism()


@cache
def _say(how: str) -> None:
    """Logs, once, where work is done."""
    log.info(how)


def warm() -> None:
    """Makes ready what the first work needs: the child process; and Spark (see `Executors.warm`) if all work is done
    there, at a Connect server, as that runs already, and if this process has begun its JVM."""
    with job():
        if _local is not None:
            _local.warm()
        if _local is None or os.environ.get(REMOTE) or jvm.begun():
            executors().warm()


def nothing(_: Any) -> None:
    """Does nothing: the work of a first job."""


def lost(error: Exception) -> ConduitError | None:
    """Returns our error if Spark is gone, see `Executors.lost`."""
    return _executors.lost(error) if _executors is not None else None


def close() -> bool:
    """Closes the executors, see `Executors.close`."""
    if _local is not None:
        _local.close()
    return _executors is not None and _executors.close()


def halt(seconds: float) -> bool:
    """Cancels this process's jobs and waits `seconds` at most; returns whether nothing is at work any more."""
    here = _local is None or _local.halt(seconds)
    return (_executors is None or _executors.halt(seconds)) and here


def interrupt() -> None:
    """Cancels this process's jobs if they would go on without it; does not wait. Any thread."""
    if _executors is not None and os.environ.get(REMOTE):
        _executors.halt(0.0)


@dataclass(frozen=True)
class _InExecutor:
    """A function that runs with its driver's settings: an executor has the environment of its worker, not of its
    driver."""

    settings: Settings
    function: Callable[[Any], Any]
    about: Mapping[str, Any]
    """Fields of its log records."""
    ending: Ending | None

    def __call__(self, piece: Any) -> Any:
        self.settings.use()
        logs.configure()
        with logs.about(**self.about), self._block():
            return self.function(piece)

    def _block(self) -> AbstractContextManager[None]:
        pipeline, node = self.about.get("pipeline"), self.about.get("node")
        return self.ending(pipeline, node) if self.ending and pipeline and node else nullcontext()
