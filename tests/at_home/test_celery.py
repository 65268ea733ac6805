"""Our wheel in an Airflow as others run it (docs/your-airflow.md)."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from benchmarks.cluster import standing
from benchmarks.postgres_server import PostgresServer
from conduit_tasks.spark import cds
from conduit_tasks.waits import still_running
from tests.at_home.airflow import WORKERS, Airflow
from tests.jvm import HOME, quick_options
from tests.redis_server import RedisServer
from tests.stack.conftest import PATIENCE, Receiver, receiver
from tests.wheels import build, environment, install, lend, lend_compiled, versions

__all__ = ["receiver"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
VERSION = os.environ.get("CONDUIT_TRIED_AIRFLOW", "3.3.2")
THEIRS = (f"apache-airflow[celery,git,postgres]=={VERSION}", *os.environ.get("CONDUIT_TRIED_WITH", "").split())
OURS = (f"apache-airflow=={VERSION}",)
"""What is installed first, and what is named together with our wheel, as the document says."""

PIPELINE = """version: "2.2"
pipelines:
  - id: at-home
    schedule: none
    connectors:
      - {{id: lines, type: source, plugin: file, settings: {{path: "in/*.jsonl", settle: 0s}}}}
      - {{id: out, type: destination, plugin: http, settings: {{url: "{url}"}}, delivery: {{timeout: 20s}}}}
"""

NODES = ("sources.lines", "destinations.out")
SHARING = """spark.cores.max 1
spark.executor.memory 512m
spark.executor.extraJavaOptions {options}
"""
"""Each node is an application: they share the cluster (docs/cluster.md)."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("theirs")
    wheel = build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))
    # On the file system of this environment, so that files are linked and not copied
    (ROOT / ".conduit").mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="theirs-", dir=ROOT / ".conduit") as place:
        yield from _installed(folder, environment(Path(place) / "environment"), wheel)


def _installed(folder: Path, programs: Path, wheel: Path) -> Iterator[Airflow]:
    install(programs, *THEIRS)
    before = versions(programs)
    lend(programs, "pyspark", "pyspark-client")
    install(programs, f"conduit-tasks @ {wheel.as_uri()}", *OURS)
    after = versions(programs)
    assert {name: after[name] for name in before} == before, "installing ours changes nothing that was there"
    lend_compiled(programs)
    (folder / "redis").mkdir()
    # The cluster's Spark is that of this environment, of which there is a class-data archive
    assert cds.ensure(HOME, timeout=500)
    spark = cds.spark_home()
    options, ours = quick_options()
    executors = {**os.environ, **ours, "PYSPARK_PYTHON": str(programs / "python")}
    with standing(folder, executors, spark, 2, options=options) as cluster:
        found = Airflow(programs, folder, cluster.master, spark, PostgresServer(), RedisServer(folder / "redis"))
        try:
            found.prepare()
            yield found
        finally:
            found.stop()


@pytest.mark.proves("C10", "T1", "T4", "I4")
def test_a_run_by_celery_outlives_a_worker_and_delivers_everything(airflow: Airflow, receiver: Receiver) -> None:
    # Given an Airflow that reads our DAG files from git, and a doctor that finds nothing wrong there
    (airflow.home / "include" / "pipelines" / "at-home.yaml").write_text(PIPELINE.format(url=receiver.url))
    (airflow.home / "in").mkdir()
    options = shlex.join(quick_options()[0])
    (airflow.home / "include" / "spark-defaults.conf").write_text(SHARING.format(options=options))
    airflow.start("api", "dag-processor")
    with airflow.api() as api:
        airflow.until(lambda: api.health().get("dag_processor", {}).get("status") == "healthy")
        airflow.until(lambda: api.dag("at-home"))
    # What these have compiled, the others need not
    airflow.start("scheduler", *WORKERS)
    airflow.conduit("doctor", "--executors")
    # Whose job has the settings of this home
    assert {"-Xmx512M" in line for line in launched(airflow)} == {True}
    # And a run by Celery that stays in the middle of a delivery
    receiver.stop_at = 101
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1, 401))
    (airflow.home / "in" / "a.jsonl").write_text(lines)
    airflow.conduit("run", "at-home", "--no-wait")
    airflow.until(lambda: len(receiver.got) > 100)
    airflow.until(lambda: delivered(airflow) == 100)
    # When the worker that delivers dies, with everything that it has started, and its executor after it
    [worker] = [w for w in WORKERS if airflow.works_on(w, "destinations.out")]
    executor = airflow.executor("conduit at-home destinations.out")
    airflow.kill(worker)
    assert not still_running(executor, PATIENCE)
    receiver.gate.set()
    # Then the other one tries the task again and goes on from what was confirmed: nothing is missing or out of order
    with airflow.api() as api:
        run = api.request("GET", "/dags/at-home/dagRuns", params={"order_by": "-run_after", "limit": 1})["dag_runs"][0]

        def attempt() -> tuple[str, int]:
            tasks = api.tasks("at-home", run["dag_run_id"])
            return next((t["state"], t["try_number"]) for t in tasks if t["task_id"] == "destinations.out")

        airflow.until(lambda: attempt() in (("running", 2), ("success", 2), ("failed", 2)))
        # It was told of the killed task, and from then on parses without a pause (docs/your-airflow.md)
        airflow.end("dag-processor")
        airflow.until(lambda: api.run("at-home", run["dag_run_id"])["state"] in ("success", "failed"))
        assert attempt() == ("success", 2)
    assert list(dict.fromkeys(receiver.got)) == list(range(1, 401))
    # And at most the one that nobody had confirmed came twice
    assert len(receiver.got) <= 400 + 1
    # And the executors were the cluster's
    log = (airflow.folder / "master.log").read_text()
    assert {f"conduit at-home {node}" for node in NODES} <= set(re.findall(r"Registering app (.+)", log))
    # And the command and the pages know of it
    assert delivered(airflow) == 400
    url = airflow.environment["CONDUIT_AIRFLOW_URL"]
    asked = f"{url}/conduit/v1/pipelines/at-home"
    assert httpx.get(asked, timeout=PATIENCE).status_code == 401
    who = httpx.post(f"{url}/auth/token", json={"username": "admin", "password": "admin"}, timeout=PATIENCE).json()
    said = httpx.get(asked, headers={"Authorization": f"Bearer {who['access_token']}"}, timeout=PATIENCE)
    assert (said.status_code, said.json()["sealed"]) == (200, 1)


def launched(airflow: Airflow) -> list[str]:
    """Returns the commands of the executors that the cluster's workers have started."""
    logs = [(airflow.folder / f"worker-{number}.log").read_text() for number in (1, 2)]
    return [line for log in logs for line in log.splitlines() if "Launch command" in line]


def delivered(airflow: Airflow) -> int:
    """Records that are confirmed as delivered to the receiver."""
    told = json.loads(airflow.conduit("status", "at-home", "--format", "json"))
    return next(int(d["delivered"]) for d in told["destinations"] if d["id"] == "out")
