"""A JVM that the Spark jobs of small benchmarks have one after the other: each of them is a Python process that makes a
Spark context there, and stops it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conduit_tasks.spark import cds
from conduit_tasks.spark.jvm import SAID, SHELL, gateway, told_in_folder
from conduit_tasks.spark.submit import launch

WARM = {"spark.python.daemon.module": "conduit_tasks.spark.daemon"}
"""Python workers of all jobs are forked from a process that has imported what they need."""
PATIENCE = 240.0
"""Seconds for it to listen, and to end."""


@dataclass(frozen=True)
class Jvm:
    """`environment`: that of a Python process which meets it."""

    environment: Mapping[str, str]

    def have(self, conf: Mapping[str, str]) -> None:
        """Gives the next Spark context these settings."""
        from py4j.java_gateway import GatewayParameters, JavaGateway

        port, secret = (self.environment[f"PYSPARK_GATEWAY_{name}"] for name in ("PORT", "SECRET"))
        java = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=secret))
        for key, value in conf.items():
            java.jvm.System.setProperty(key, value)
        java.close()


@contextmanager
def running(base: Path, environment: Mapping[str, str], log: Path) -> Iterator[Jvm]:
    """Starts one for the block, as our operator starts a driver. `base`: where it works; `log`: of its stderr."""
    start = launch(base, "local[1]", "client", WARM)
    argv = [*(start.command or [str(cds.spark_home() / "bin" / "spark-submit")]), "--master", "local[1]"]
    argv += [word for key, value in start.conf.items() for word in ("--conf", f"{key}={value}")]
    with told_in_folder() as told, log.open("ab") as errors:
        env = {**environment, **start.env, **told}
        process = subprocess.Popen([*argv, SHELL], env=env, cwd=base, stdin=subprocess.PIPE, stderr=errors)
        try:
            said, deadline = Path(told[SAID]), time.monotonic() + PATIENCE
            while not said.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the JVM of all jobs does not listen; {log} says why")
                time.sleep(0.02)
            yield Jvm(gateway(said))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
