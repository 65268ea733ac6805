"""A plain submit whose driver is forked from its task and starts the JVM: it is as one that Spark starts."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow.hook import ConduitSubmitHook
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.exit_codes import ENDED
from conduit_tasks.waits import still_running
from tests.airflow.test_operator import how, killed, operator, processes, work  # noqa: F401

Build = Callable[..., ConduitSubmitOperator]
JOB = """
import json, logging, os, sys
from conduit_tasks.spark.plain import context
sc = context()
logging.getLogger("mine").warning("a warning of somebody's")
sys.stderr.write('conduit {{"event": "progress", "n": 7}}\\n')
sc._jvm.java.lang.System.err.println("a line of the JVM's")
print("a line of its own")
jvm = sc._jvm.java.lang.ProcessHandle.current().pid()
words = [open(f"/proc/{{pid}}/cmdline").read() for pid in (os.getppid(), jvm)]
ids = ("app.id", "app.startTime", "app.submitTime", "driver.port")
told = {{
    "argv": sys.argv,
    "sum": sc.parallelize(range(10), 2).map(lambda n: n * n).sum(),
    "conf": sorted(pair for pair in sc.getConf().getAll() if pair[0].removeprefix("spark.") not in ids),
    "secret": [name for name in ("hush-hush", os.environ["PYSPARK_GATEWAY_SECRET"]) for line in words if name in line],
    "python": [sc.pythonExec, sc.pythonVer, sys.executable],
    "worker": sc.parallelize([0], 1).map(lambda _: dict(os.environ)["PYTHONHASHSEED"]).first(),
}}
json.dump([told, "java" in words[0]], open({told!r}, "w"))
"""
AT_WORK = """
import os, time
from conduit_tasks.spark.plain import context
sc = context()
def work(_):
    open({told!r} + ".side", "w").write(" ".join(map(str, [{pids}, os.getpid()])))
    os.rename({told!r} + ".side", {told!r})
    time.sleep(600)
driver, jvm = os.getpid(), sc._jvm.java.lang.ProcessHandle.current().pid()
sc.parallelize([0], 1).map(work).collect()
"""


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """What the application says."""
    return tmp_path / "told"


@pytest.mark.slow
def test_a_job_of_a_forked_driver_is_that_of_a_started_one(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    told: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    read = ConduitSubmitHook._without_events

    def heard(hook: ConduitSubmitHook, output: Iterator[str]) -> Iterator[str]:
        return read(hook, (lines.append(line) or line for line in output))  # type: ignore[func-returns-value]

    monkeypatch.setattr(ConduitSubmitHook, "_without_events", heard)
    application.write_text(JOB.format(told=str(told)))
    found = {}
    for way in ("started", "forked"):
        # When a node's task submits
        how(way)
        task = operator(conf={"spark.redaction.nothing": "hush-hush"})
        task.execute(context)
        said, below_java = json.loads(told.read_text())
        found[way] = said
        # Then who starts whom is the only difference
        assert below_java is (way == "started")
        assert task._hook.events == {"progress": {"event": "progress", "n": 7}}
        assert task._hook.exit_code == 0
    assert found["forked"] == found["started"]
    assert found["forked"]["sum"] == 285
    assert found["forked"]["secret"] == []
    assert "".join(lines).count("a line of its own") == 2
    assert "Traceback" not in "".join(lines), "nobody says anything of a JVM that ends as it should"


@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_whichever_of_driver_and_jvm_is_killed_the_other_ends_and_so_does_the_worker(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    told: Path,
    context: Any,
    victim: str,
) -> None:
    # Given a forked driver in the middle of a job
    how("forked")
    application.write_text(AT_WORK.format(told=str(told), pids="driver, jvm"))
    task = operator()

    def kill() -> None:
        driver, jvm, _ = map(int, told.read_text().split())
        os.kill({"driver": driver, "jvm": jvm}[victim], signal.SIGKILL)

    task.on_kill = kill  # type: ignore[method-assign]
    # When one of the two is killed
    error = killed(task, context, told.exists)
    # Then the task fails, and nothing is left
    assert isinstance(error, AirflowException)
    assert task._hook.exit_code == {"driver": 128 + signal.SIGKILL, "jvm": 1}[victim]
    assert still_running(processes(told.read_text()), 240) == []


def test_a_driver_that_is_ended_before_it_can_do_so_in_order_is_not_counted_as_one_that_died(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a forked driver that SIGTERM ends where nothing handles it yet
    how("forked")
    died: list[Any] = []
    monkeypatch.setattr(ConduitSubmitOperator, "_died", lambda *told: died.append(told))
    application.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    task = operator()
    with pytest.raises(AirflowException, match="Error code is: 143"):
        task.execute(context)
    # Then it ended as one that Spark starts
    assert task._hook.exit_code == ENDED
    assert died == []


def test_a_jvm_that_does_not_start_ends_the_driver_with_its_code(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    told: Path,
    context: Any,
) -> None:
    application.write_text(JOB.format(told=str(told)))
    for way in ("started", "forked"):
        how(way)
        task = operator(conf={"spark.driver.memory": "1k"})
        with pytest.raises(AirflowException, match="Error code is: 1"):
            task.execute(context)
        assert task._hook.exit_code == 1
    assert not told.exists()


def test_a_jvm_that_nobody_needs_is_not_started(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    told: Path,
    context: Any,
) -> None:
    # Given an application that asks for no work in Spark, and a JVM that could not start
    how("forked")
    application.write_text(
        f"from conduit_tasks.spark import jvm\nopen({str(told)!r}, 'w').write(str(jvm.prepared()))\n"
    )
    task = operator(conf={"spark.driver.memory": "1k"})
    # When it is submitted
    task.execute(context)
    # Then it had one at hand, and ended well without it
    assert told.read_text() == "True"
    assert task._hook.exit_code == 0


@pytest.mark.slow
def test_spark_starts_the_driver_where_it_is_told_with_which_python(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    how: Callable[[str], None],  # noqa: F811
    application: Path,
    told: Path,
    context: Any,
) -> None:
    how("forked")
    application.write_text(
        f"import os\nopen({str(told)!r}, 'w').write(open(f'/proc/{{os.getppid()}}/cmdline').read())\n"
    )
    operator(conf={"spark.pyspark.driver.python": sys.executable}).execute(context)
    assert "SparkSubmit" in told.read_text()


@pytest.mark.parametrize(
    ("conf", "extra", "forks"),
    [
        ({"spark.executor.memory": "1g", "spark.jars": "a.jar"}, {"principal": "p", "keytab": "k"}, True),
        ({"spark.pyspark.python": sys.executable}, {}, False),
        ({"spark.submit.pyFiles": "a.zip"}, {}, False),
        ({"spark.jars.packages": "a:b:1"}, {}, False),
        ({"spark.driver.extraClassPath": "a.jar"}, {}, False),
        ({}, {"spark-binary": "spark3-submit"}, False),
        ({}, {"deploy-mode": "cluster"}, False),
    ],
)
def test_a_driver_is_forked_only_where_it_would_import_the_same(
    how: Callable[[str], None],  # noqa: F811
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    conf: dict[str, str],
    extra: dict[str, str],
    forks: bool,
) -> None:
    how("forked")
    connection = {"conn_type": "spark", "host": "spark://one:7077", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_OWN", json.dumps(connection))
    hook = ConduitSubmitHook(home, conn_id="spark_own", conf=conf, name="n", application_args=[], quick_jit=True)
    assert hook._forks is forks
