"""Jobs on a Spark Connect server that runs already: sessions that are found again, with warm Python workers, and the
end of a job that a dead driver left.

Sessions are found again, not stored: their ids are made of the installation, the pipeline, the user's code and a number
that is counted up if the server has closed a session (an hour idle by default). Each session has Python workers of its
own, so the nodes of a pipeline share one; a node that uses SQL has a session of its own, because a session has one set
of views and settings. New code gets a new session, or warm workers would go on with the old code.

A job has its node's name as a tag. A driver that was killed leaves its job running at the server: the next driver,
which has the lease by then, interrupts it before its first job. The fencing token protects against whatever the old job
did meanwhile (invariant 4).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from conduit_tasks.errors import ConduitError, ConfigError, SparkLost
from conduit_tasks.settings import settings
from conduit_tasks.spark.ended import going_on
from conduit_tasks.spark.pieces import Pieces, at_work, nobody_at, run_pieces
from conduit_tasks.spark.remote import TOKEN, Address
from conduit_tasks.spark.shipping import NAME, zipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER = "conduit"
NAMESPACE = uuid.UUID("6f0e4d0e-6d0c-5d9c-8f57-0a4d5b8f7c11")
RETRIES = {"max_retries": 6, "initial_backoff": 100, "backoff_multiplier": 2.0, "max_backoff": 1600}
"""Retries of a call to a server that does not answer: 4.7 s in all (by default 614 s); then the attempt ends."""
CLOSED = ("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED")
LOST = (*CLOSED, "OPERATION_NOT_FOUND", "OPERATION_ABANDONED", "RESPONSE_ALREADY_RECEIVED")
"""Errors of a server that has forgotten the session or the job."""


class ConnectExecutors:
    """Executors of a Connect server, see `session.Executors`. Raises SparkLost if the server is gone or has forgotten
    the session."""

    def __init__(self, url: str, pipeline: str, node: str) -> None:
        self.address, self.pipeline, self.node = Address.parse(url), pipeline, node or "unnamed"
        self._sessions: dict[str, Any] = {}
        self._opening = threading.Lock()
        self._lock: Path | None = None
        self._cleared: set[str] = set()
        self._parallelism: int | None = None

    def run_all(self, function: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        with self._speaking():
            spark = self._session("")
            self._begin(spark)
            going_on()
            return run_pieces(spark, Pieces(function, pieces, str(self._lock) if self._lock else None))

    def parallelism(self) -> int:
        # Asked once: no client of a server is told of the cores that come and go.
        if self._parallelism is None:
            with self._speaking():
                spark = self._session("")
                self._begin(spark)
                parts = spark.range(1 << 16).selectExpr("spark_partition_id() AS part").agg({"part": "max"})
                self._parallelism = 1 + int(parts.collect()[0][0])
        return self._parallelism

    def warm(self) -> None:
        from conduit_tasks.spark.session import nothing

        # Without this node's tag: the run before may still work under the node's lease, and is not interrupted.
        with self._speaking():
            run_pieces(self._session(""), Pieces(nothing, [0], None))

    def session(self) -> SparkSession:
        with self._speaking():
            spark = self._session(self.node)
            self._begin(spark)
        return spark

    def halt(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            for spark in list(self._sessions.values()):
                spark.interruptTag(self.node)
        except Exception:  # noqa: BLE001 - the server is gone, and so are the workers: nobody knows since when
            return False
        # An SQL job has no worker of ours to watch, and workers on other machines cannot be watched.
        if self._lock is None or len(self._sessions) > 1:
            return False
        while not nobody_at(self._lock):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> bool:
        """Closes the clients and leaves the sessions; otherwise Spark's client would call the server at the exit."""
        for spark in self._sessions.values():
            spark.client.close()
        return True

    def release(self) -> None:
        """Closes the sessions at the server, for good: their ids cannot be used again."""
        from pyspark.sql.connect.session import SparkSession

        for spark in self._sessions.values():
            spark.client.release_session()
            spark.client.close()
        self._sessions.clear()
        SparkSession._default_session = None
        SparkSession._active_session.session = None

    def lost(self, error: Exception) -> ConduitError | None:
        """Returns the error to raise if Spark's error is about the server; None if it is about the work."""
        if _refused(error):
            return ConfigError(
                f"the Spark Connect server at {self.address} does not take the token: give it as the password of the "
                f"Airflow connection, or as {TOKEN}"
            )
        if not _gone(error):
            return None
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        return SparkLost(
            f"the Spark Connect server at {self.address} ended, cannot be reached or has forgotten the session "
            f"({said}); nothing is lost, the next attempt begins a new session. Its log says why"
        )

    def _begin(self, spark: Any) -> None:
        """Interrupts the jobs that a predecessor left, once per session, and tags this thread's jobs with the node."""
        if spark.session_id not in self._cleared:
            spark.interruptTag(self.node)
            self._cleared.add(spark.session_id)
        spark.addTag(self.node)

    def _session(self, part: str) -> Any:
        with self._opening:
            if part not in self._sessions:
                self._sessions[part] = self._open(part)
            return self._sessions[part]

    def _open(self, part: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="conduit-include-") as side:
            code = zipped(settings().home, Path(side) / NAME)
            digest = hashlib.sha256(code.read_bytes()).hexdigest() if code else ""
            names = "\0".join((_installation(), self.pipeline, part, digest))
            spark = first_open(lambda number: self._connect(names, number))
            here = self.address.loopback and str(spark.conf.get("spark.master")).startswith("local")
            if here:
                self._lock = at_work(self.pipeline, self.node)
            elif code is not None:
                # The same file again changes nothing at the server.
                spark.addArtifacts(str(code), pyfile=True)
        # Applies spark.sql.* settings (PYSPARK_REMOTE_INIT_CONF_0), as Spark's own builder does.
        type(spark).builder._apply_options(spark)
        # The server's cores are shared fairly between pipelines (spark.scheduler.mode=FAIR).
        spark.conf.set("spark.scheduler.pool", self.pipeline or "conduit")
        if not part:
            # Pieces are one stage: there is nothing to adapt, and trying costs each job some milliseconds.
            spark.conf.set("spark.sql.adaptive.enabled", "false")
        return spark

    def _connect(self, names: str, number: int) -> Any:
        """Returns a live session, or None if the server has closed it."""
        # By this variable PySpark's functions choose between their two implementations.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        own = str(uuid.uuid5(NAMESPACE, f"{names}\0{number}"))
        spark = SparkSession(connection=self.address.channel(USER, own))
        spark.client.set_retry_policies([DefaultPolicy(**RETRIES)])  # type: ignore[arg-type]
        try:
            spark.conf.get("spark.master")
        except PySparkException as error:
            if any(word in str(error) for word in CLOSED):
                spark.client.close()
                return None
            raise
        SparkSession._set_default_and_active_session(spark)
        return spark

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Turns errors of Spark that are about the server, not about the work, into ours."""
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            if lost := self.lost(error):
                raise lost from error
            raise


def warm(url: str) -> None:
    """Runs a small job in a session that belongs to no pipeline, and closes the session."""
    executors = ConnectExecutors(url, "", "warm")
    try:
        executors.run_all(abs, [-1, -2])
    finally:
        executors.release()


def first_open(connect: Callable[[int], Any]) -> Any:
    """Returns the result of `connect` for the lowest number for which it is not None. Closed sessions have lower
    numbers than open ones, so the number is searched in steps that double, then by bisection. Raises SparkLost if there
    is none."""
    if (found := connect(0)) is not None:
        return found
    low, high = 0, 1
    while (found := connect(high)) is None:
        low, high = high, high * 2
        if high > 1 << 40:
            raise SparkLost("the Spark Connect server takes no session; look at its log")
    while high - low > 1:
        middle = (low + high) // 2
        if (other := connect(middle)) is None:
            low = middle
        else:
            found, high = other, middle
    return found


def _installation() -> str:
    """Returns a text that distinguishes installations that share a server; it contains no login."""
    own = settings()
    where = urlsplit(own.redis_url)
    broker = f"{where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"
    return "\0".join((str(own.home.resolve()), broker, own.path(own.spool)))


def _gone(error: Any) -> bool:
    """Returns whether an error is about the server, not about the work."""
    code = error.getGrpcStatusCode() if hasattr(error, "getGrpcStatusCode") else None
    return getattr(code, "name", "") == "UNAVAILABLE" or any(word in str(error) for word in LOST)


def _refused(error: Any) -> bool:
    code = error.getGrpcStatusCode() if hasattr(error, "getGrpcStatusCode") else None
    return getattr(code, "name", "") == "UNAUTHENTICATED"
