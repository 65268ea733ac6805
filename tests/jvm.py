"""JVMs of tests live for seconds: they get the class-data archive, and are compiled no further than that pays."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from conduit_tasks.spark import cds
from conduit_tasks.spark.submit import DEFAULTS_FILE

HOME = Path(os.devnull)
"""No home: `CONDUIT_CLASS_DATA` is where the archive of the tests is."""

OF_A_TEST = ("AWS_", "CONDUIT_")
"""How names of environment variables begin that tests set."""


def quick_options() -> tuple[list[str], dict[str, str]]:
    """Options for a JVM that some script of Spark's starts, and the environment in which the archive fits; without the
    archive where nobody has built it yet."""
    archive = cds.find(HOME)
    if archive is None:
        return list(cds.JVM_OPTIONS), {}
    options = [*cds.JVM_OPTIONS, f"-XX:SharedArchiveFile={archive.path}", *cds.QUIET]
    return options, {"SPARK_CONF_DIR": str(archive.conf_dir)}


def quick_executors() -> dict[str, str]:
    """Spark's options for small executors of a cluster that start as quickly as drivers do, and whose environment says
    what this process's does."""
    return {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.executor.extraJavaOptions": shlex.join(quick_options()[0]),
        **{f"spark.executorEnv.{name}": os.environ[name] for name in os.environ if name.startswith(OF_A_TEST)},
    }


def shallow(home: Path) -> None:
    """Has the Connect server of this home compiled by C1 only, too: one that lives for months is by C2."""
    file = home / DEFAULTS_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    line = "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\n"
    there = file.read_text() if file.exists() else ""
    if line not in there:
        file.write_text(there + line)
