"""A pipeline on a standalone Spark cluster: real master, two real workers; only the connection's master differs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster
from conduit_tasks.airflow.forked import spare
from conduit_tasks.airflow.hook import ConduitSubmitHook
from conduit_tasks.application import APPLICATION
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.settings import forget
from conduit_tasks.spark import cds
from conduit_tasks.spark.submit import launch
from conduit_tasks.spool.spool import Spool
from tests.faults.parts import account, events
from tests.forking import as_of_a_task
from tests.jvm import quick_executors
from tests.micro_batch.harness import payloads, write_pipeline
from tests.waiting import until

PIPELINE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: numbers
        type: source
        plugin: file
        settings: {{path: "{shared}/in/*.jsonl", format: jsonl, settle: 0s}}
      - id: all
        type: destination
        plugin: file
        settings: {{path: "{shared}/out/all.jsonl", format: payload}}
        processors: [{{id: mark, plugin: python, settings: {{call: "include.own.marks:mark"}}}}]
    processors:
      - {{id: even, plugin: sql, settings: {{schema: n INT, query: SELECT * FROM records WHERE after.n % 2 = 0}}}}
"""


def submit(home: Path, master: str, node: str) -> str:
    """One node's application, started the way the operator starts it; its output."""
    start = launch(home, master, "client", quick_executors())
    options = [word for key, value in start.conf.items() for word in ("--conf", f"{key}={value}")]
    ids = ["--pipeline", "p", "--node", node, "--run", "r"]
    command = [*(start.command or ["spark-submit"]), "--master", master, *options, str(APPLICATION), *ids]
    # The home is where the driver works: executors, which work elsewhere, have none, as on another machine.
    environment = {**os.environ, **start.env, "SPARK_LOCAL_IP": "127.0.0.1", "CONDUIT_HOME": "."}
    done = subprocess.run(
        command,
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def submit_forked(home: Path, master: str, node: str, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The same, its driver forked from this process as from a task of Airflow's; what it ended with."""
    connection = {"conn_type": "spark", "host": master}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setattr("conduit_tasks.airflow.forked.loaded", lambda: True)
    as_of_a_task(monkeypatch)
    monkeypatch.chdir(home)
    monkeypatch.setenv("CONDUIT_HOME", ".")
    with spare() as application:
        hook = ConduitSubmitHook(
            home,
            conn_id="spark_cluster",
            conf=quick_executors(),
            name=node,
            application_args=["--pipeline", "p", "--node", node, "--run", "r"],
            quick_jit=True,
            spare=application,
        )
        hook.submit(str(APPLICATION))
        assert application is not None
        assert application.started
    return hook.exit_code


@pytest.mark.proves("C2", "C9", "C10")
def test_a_pipeline_runs_on_a_cluster_and_loses_nothing_with_a_worker(
    home: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given data that every machine sees, and code of the user's that only the driver does
    shared = tmp_path / "shared"
    monkeypatch.setenv("CONDUIT_SPOOL", str(shared / "spool"))
    forget()
    rows = events(shared / "in", 1_000)
    write_pipeline(home, "p", PIPELINE.format(shared=shared))
    (home / "include" / "own").mkdir()
    (home / "include" / "own" / "words.py").write_text('SEEN = "yes"\n')
    (home / "include" / "own" / "marks.py").write_text(
        "from include.own.words import SEEN\n\ndef mark(record):\n    record.after['seen'] = SEEN\n    return record\n"
    )

    assert plan_run("p", "r").work
    before = cluster.applications()
    assert '"event":"done"' in submit(home, cluster.master, "sources.numbers")
    assert cluster.applications() == before + 1, "the executors are the cluster's"
    cluster.workers[1].kill()
    assert '"event":"done"' in submit(home, cluster.master, "processors")
    # And with a driver that is forked from its task, which takes a class-data archive
    assert cds.ensure(home, timeout=500) is not None
    before = cluster.applications()
    assert submit_forked(home, cluster.master, "destinations.all", monkeypatch) == 0
    assert cluster.applications() == before + 1
    ack_source("p", "numbers", "r")

    assert payloads(shared / "out" / "all.jsonl") == [{**row, "seen": "yes"} for row in rows if row["n"] % 2 == 0]
    assert account()["destinations"]["all"]["matched"] == 500


@pytest.mark.proves("C9", "C10")
def test_executors_of_two_workers_keep_the_spool_on_s3(
    home: Path, bucket: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a spool and dead letters on an S3 API, which executors know of by their own environment
    shared = tmp_path / "shared"
    monkeypatch.setenv("CONDUIT_SPOOL", f"{bucket}/spool")
    monkeypatch.setenv("CONDUIT_DEAD_LETTERS", f"{bucket}/dead-letters")
    forget()
    rows = events(shared / "in", 500)
    (shared / "in" / "a.jsonl").rename(shared / "in" / "b.jsonl")
    rows += events(shared / "in", 500, start=500)
    frames = PIPELINE[PIPELINE.index("        processors: [{{id: mark") :]
    write_pipeline(home, "p", PIPELINE.replace(frames, "").format(shared=shared))

    def worked(number: int) -> set[Path]:
        return set(cluster.folder.glob(f"worker-{number}-work/app-*/*"))

    before = {number: worked(number) for number in (1, 2)}
    assert plan_run("p", "r").work
    for node in ("sources.numbers", "destinations.all"):
        assert '"event":"done"' in submit(home, cluster.master, node)
    ack_source("p", "numbers", "r")

    # Then everything came through it: it is on no disk of ours
    assert sorted(payloads(shared / "out" / "all.jsonl"), key=str) == sorted(rows, key=str)
    assert Spool(f"{bucket}/spool").micro_batches("p") == [1]
    assert not (home / ".conduit" / "spool").exists()
    until(lambda: all(worked(number) - seen for number, seen in before.items()), "both workers")
