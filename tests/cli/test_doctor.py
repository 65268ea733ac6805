"""`conduit doctor`: what it names in an installation that is wrong, what to do, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.cli import checks
from conduit_tasks.cli.checks import Checked
from conduit_tasks.cli.executors import differences, look, versions
from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import forget
from conduit_tasks.spark import cds, session
from tests.fork import conduit
from tests.micro_batch.harness import write_pipeline
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.txt}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
"""
SPARK = '{"conn_type": "spark", "host": "local[*]"}'


def found(*checks: Callable[[], Any]) -> dict[str, Checked]:
    return {each.what: each for check in checks for each in check()}


def test_the_command_says_what_was_found_and_what_to_do(home: Path, tmp_path: Path) -> None:
    # Given an installation with a pipeline, a Redis and a Spark connection, but no database of Airflow
    write_pipeline(home, "p", PIPELINE)
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW_CONN_SPARK_DEFAULT": SPARK}
    # When
    done = conduit("doctor", "--format", "json", environment=environment, airflow=True)
    states = {each["what"]: (each["state"], each["found"], each["todo"]) for each in json.loads(done.stdout)}
    # Then what is right is said to be, and what cannot be looked at from here
    assert {name for name, (state, _, _) in states.items() if state == "wrong"} == set()
    assert states["Spark connection"][:2] == ("good", "spark_default: local[*]")
    assert [states[name][0] for name in ("Redis", "home", "spool", "dead letters", "pipelines", "plugin")] == [
        "good"
    ] * 6
    assert states["pool"][0] == "unknown"
    assert "AIRFLOW_HOME" in states["pool"][2]
    assert done.returncode == 2
    # And whatever is not good says what to do
    assert all(todo for state, _, todo in states.values() if state != "good")


def test_the_exit_code_is_that_of_the_worst(conduit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(*states: str) -> int:
        each = [Checked(state, state, "found", "do this") for state in states]  # type: ignore[arg-type]
        monkeypatch.setattr(checks, "everything", lambda **_: iter(each))
        result = conduit("doctor")
        assert all(f"{state}: do this" in result.output for state in states if state != "good")
        return int(result.exit_code)

    assert given("good", "doubtful") == 0
    assert given("good", "unknown", "doubtful") == 2
    assert given("wrong", "unknown", "good") == 1


def test_a_check_that_breaks_leaves_the_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def redis() -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(checks, "redis", redis)
    states = {each.what: each.state for each in checks.everything(executors=False)}
    assert states["redis"] == "unknown"
    assert states["spool"] == "good"


def test_a_redis_that_does_not_answer_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://u:geheim@127.0.0.1:1/0")
    forget()
    only = found(checks.redis)["Redis"]
    assert only.state == "wrong"
    assert "CONDUIT_REDIS_URL" in only.todo
    assert "geheim" not in only.found


def test_a_redis_that_would_lose_data_is_wrong_unless_it_is_told_to_be(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a Redis without an append-only file that evicts
    server = RedisServer(tmp_path)
    server.start("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    try:
        monkeypatch.setenv("CONDUIT_REDIS_URL", server.url)
        forget()
        problems = [each for each in checks.redis() if each.what == "Redis durability"]
        assert {each.state for each in problems} == {"wrong"}
        assert {each.todo for each in problems} == {"set `appendonly yes`", "set `maxmemory-policy noeviction`"}
        monkeypatch.setenv("CONDUIT_REDIS_DURABILITY", "unsafe")
        forget()
        assert {each.state for each in checks.redis() if each.what == "Redis durability"} == {"doubtful"}
    finally:
        server.kill()


def test_a_spool_that_cannot_be_written_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a-file").write_text("")
    monkeypatch.setenv("CONDUIT_SPOOL", "a-file/spool")
    forget()
    states = found(checks.folders)
    assert states["spool"].state == "wrong"
    assert "CONDUIT_SPOOL" in states["spool"].todo
    assert states["dead letters"].state == "good"
    # And nothing is left of what was tried
    assert list((home / ".conduit" / "dead-letters").iterdir()) == []


def test_a_pipeline_with_an_error_is_wrong(home: Path) -> None:
    write_pipeline(home, "p", PIPELINE.replace("path: in.txt", "pth: in.txt"))
    only = found(checks.pipelines)["pipelines"]
    assert (only.state, "E205" in only.found) == ("wrong", True)


def test_a_spark_connection_is_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks import connections
    from conduit_tasks.connections import Connection

    def given(**fields: Any) -> dict[str, Checked]:
        connections.give({"spark_default": Connection("spark_default", **fields)} if fields else {})
        return found(checks.spark)

    try:
        assert given()["Spark connection"].state == "wrong"
        assert given(type="spark_connect", host="localhost", port=1)["Spark connection"].state == "wrong"
        # A folder as spool, and executors on other machines
        assert given(type="spark", host="spark://elsewhere", port=7077)["spool of a cluster"].state == "doubtful"
        assert "spool of a cluster" not in given(type="spark", host="local[2]")
        monkeypatch.setenv("JAVA_HOME", str(home / "none"))
        assert given(type="spark", host="local[2]")["Java"].state == "wrong"
    finally:
        connections.give(None)


JOB = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")
"""What the environment of doctor's Spark job says of it."""


def test_executors_are_looked_at(home: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JOB:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    # Given executors that see everything
    answers = look(None, "local[2]")
    # Then nothing is wrong, and nothing is left in the spool
    assert list(differences(answers)) == []
    assert not list((home / ".conduit" / "spool").glob(".doctor-*"))
    # And where one is another machine
    strange = {**versions(), "host": "far", "file": "f", "pyarrow": "1.0", "redis": "refused", "spool": "read-only"}
    assert len(list(differences([strange]))) == 3
    lost = {**versions(), "host": "far", "file": "f", "lost": True}
    [(said, todo)] = differences([lost])
    assert said == "far: what it writes into the spool is not seen here"
    assert "CONDUIT_SPOOL" in todo


def test_its_job_has_the_settings_of_nodes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given what every application of this cluster must say, beside a master that the connection overrules
    (home / "include" / "spark-defaults.conf").write_text("spark.executor.memory 512m\nspark.master local\n")
    told: list[str] = []

    def run_all(*_: Any) -> list[dict[str, Any]]:
        words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        given = dict(zip(words[::2], words[1::2], strict=False))
        told.extend([given["--master"], Path(given["--properties-file"]).read_text()])
        return []

    monkeypatch.setattr(session, "run_all", run_all)
    for name in JOB:
        monkeypatch.setenv(name, "")
    # When executors are looked at
    look(None, "spark://far:7077")
    # Then the job has it
    assert told[0] == "spark://far:7077"
    assert "spark.executor.memory=512m\n" in told[1]
    # And its JVM starts as theirs
    assert all(option in told[1] for option in cds.JVM_OPTIONS)
    assert os.environ["SPARK_CONF_DIR"] == str(cds.empty_conf_dir(home))
    # And a file that cannot be read is named
    (home / "include" / "spark-defaults.conf").write_text("executor.memory 512m\n")
    with pytest.raises(ConfigError, match=r"spark-defaults\.conf:1"):
        look(None, "spark://far:7077")


def test_a_package_of_another_version_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "requires", lambda name: ["redis>=99", "pyspark>=4", "apache-airflow-nobody>=1"])
    wrong = {each.what: each.todo for each in checks.versions() if each.state == "wrong"}
    assert wrong == {
        "redis": "pip install 'redis>=99'",
        "apache-airflow-nobody": "pip install 'apache-airflow-nobody>=1'",
    }


def test_files_of_another_pyspark_than_is_installed_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "3.5.0")
    monkeypatch.setattr(checks, "requires", lambda name: [])
    (one,) = [each for each in checks.versions() if each.what == "pyspark"]
    assert (one.state, "3.5.0" in one.found, "--force-reinstall" in one.todo) == ("wrong", True, True)


def test_a_pyspark_client_of_another_version_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "requires", lambda name: [])
    monkeypatch.setattr(checks, "version", {"pyspark": "4.1.1", "pyspark-client": "4.2.0"}.__getitem__)
    (one,) = [each for each in checks.versions() if each.what == "pyspark"]
    assert (one.state, one.found) == ("wrong", "4.1.1, and pyspark-client is 4.2.0")
    assert one.todo.endswith("pyspark==4.1.1 pyspark-client==4.1.1")


def test_a_plugin_that_airflow_does_not_find_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "entry_points", lambda group: [])
    (one,) = checks.plugin()
    assert (one.state, "no entry point" in one.found, "pip install" in one.todo) == ("wrong", True, True)


def test_a_folder_of_dags_without_ours_is_doubtful(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "theirs.py").write_text("import airflow\n")
    for file in (home / "dags").glob("*.py") if (home / "dags").is_dir() else ():
        file.unlink()
    (one,) = checks.dag_files()
    assert (one.state, "conduit init" in one.todo) == ("doubtful", True)
    (tmp_path / "dags" / "ours.py").write_text("from conduit_tasks.airflow.factory import build\n")
    (one,) = checks.dag_files()
    assert (one.state, one.found) == ("good", str(tmp_path / "dags" / "ours.py"))


@pytest.mark.parametrize(
    ("name", "slots", "state", "says"),
    [
        ("drivers", None, "wrong", "which does not exist"),
        (None, 128, "doubtful", "CONDUIT_SPARK_POOL is not set"),
        ("drivers", 4, "good", "drivers, 4 slots"),
    ],
)
def test_the_pool_of_drivers_is_looked_at(
    name: str | None, slots: int | None, state: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.pool import Pool

    monkeypatch.delenv("CONDUIT_SPARK_POOL", raising=False)
    if name:
        monkeypatch.setenv("CONDUIT_SPARK_POOL", name)
    there = None if slots is None else Pool(pool=name or "default_pool", slots=slots)
    monkeypatch.setattr(Pool, "get_pool", lambda asked: there)
    (one,) = checks.pool()
    assert (one.state, says in one.found) == (state, True), one
    assert state == "good" or one.todo
