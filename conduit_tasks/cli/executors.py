"""A Spark job for `conduit doctor --executors`: versions, Redis and spool as executors see them, and what differs."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.spark.remote import Address

PIECES = 4
"""Spark tasks of the job; more than one machine may take them."""
SAME = ("python", "conduit-tasks", "pyspark", "pyarrow")
"""Versions that have to be the same in driver and executors."""


def versions() -> dict[str, str]:
    """Returns the versions in this process."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"python": python, **{package: version(package) for package in SAME[1:]}}


@dataclass(frozen=True)
class Look:
    """One look at what a process sees; picklable. `name`: of the file that it writes into the spool."""

    name: str

    def __call__(self, piece: int) -> dict[str, Any]:
        from conduit_tasks.redis_client.connection import connect
        from conduit_tasks.spool.store import open_store, put

        config = settings()
        out: dict[str, Any] = {"host": socket.gethostname(), **versions()}
        file = f"{self.name}-{piece}"
        for name, try_it in (
            ("redis", lambda: connect(config).close()),
            ("spool", lambda: put(open_store(config.path(config.spool)), file, b"x")),
        ):
            try:
                try_it()
            except Exception as error:  # noqa: BLE001 - it is what the report is about
                out[name] = f"{type(error).__name__}: {error}"
        return {**out, "file": file}


def look(address: Address | None, master: str) -> list[dict[str, Any]]:
    """Returns what the executors of a Connect server, or else of a master, see; `lost`: what they wrote into the spool
    is not there. At a master the job has the settings of nodes (`include/spark-defaults.conf`), and starts as they do.

    Raises ConfigError if that file cannot be read."""
    from conduit_tasks.spark import session
    from conduit_tasks.spark.submit import Launch, launch, properties_file
    from conduit_tasks.spool.store import open_store

    start = Launch()
    if address is None:
        start = launch(settings().home, master, None, own={"spark.ui.enabled": "false"}, launcher=True)
    with properties_file(start.conf) as file:
        if address is not None:
            os.environ.update(address.environment())
        else:
            words = ["--master", master, "--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"]
            os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)
            if "SPARK_CONF_DIR" in start.env:  # with which the class-data archive fits
                os.environ["SPARK_CONF_DIR"] = start.env["SPARK_CONF_DIR"]
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        session.work_for("doctor", "doctor")
        answers = session.run_all(Look(f".doctor-{uuid.uuid4().hex}"), list(range(PIECES)))
    store = open_store(settings().path(settings().spool))
    for answer in answers:
        if "spool" not in answer and store.size(answer["file"]) is None:
            answer["lost"] = True
        store.delete(answer["file"])
    return answers


def differences(answers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields what is wrong, and what to do; once for each machine."""
    here = versions()
    for answer in {a["host"]: a for a in answers}.values():
        host = answer["host"]
        for name in SAME:
            if answer[name] != here[name]:
                yield f"{host} has {name} {answer[name]}, the driver {here[name]}", "install the same on every machine"
        if "redis" in answer:
            yield f"{host}: {answer['redis']}", "give CONDUIT_REDIS_URL an address that executors reach"
        if "spool" in answer:
            yield f"{host}: the spool cannot be written: {answer['spool']}", "mount it there, writable for Spark's user"
        if answer.get("lost"):
            yield (
                f"{host}: what it writes into the spool is not seen here",
                "CONDUIT_SPOOL must be one folder, or a store",
            )
