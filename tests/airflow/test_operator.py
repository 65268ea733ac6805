"""The submit operator on the real provider and the real `spark-submit`; only the application is the test's."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from conduit_tasks.airflow import forked
from conduit_tasks.airflow.failing import NodeFailed
from conduit_tasks.airflow.hook import describe_event, parse_event
from conduit_tasks.airflow.operator import ConduitSubmitOperator, was_cleared
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.work_needed import WorkNeeded
from conduit_tasks.settings import settings
from conduit_tasks.spark import cds
from conduit_tasks.waits import still_running
from tests.airflow.conftest import write_pipeline
from tests.forking import as_of_a_task
from tests.waiting import until


@pytest.fixture
def operator(home: Path, spark_connection: str, application: Path) -> Callable[..., ConduitSubmitOperator]:
    def build(node: str = "destinations.out", **options: Any) -> ConduitSubmitOperator:
        return ConduitSubmitOperator(task_id="t", pipeline_id="toy", node=node, **{"drain_limit": 60.0, **options})

    write_pipeline(home)
    return build


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """There is always work to do; what was asked is kept."""
    asked: list[tuple[Any, ...]] = []

    def needed(context: Context, node: str, run: str, *, cleared: bool, ready: bool) -> WorkNeeded:
        asked.append((context.pipeline.id, node, run, cleared))
        return WorkNeeded(True, "micro-batch 1")

    monkeypatch.setattr("conduit_tasks.micro_batch.work_needed.needed", needed)
    return asked


@pytest.fixture
def how(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says whether the driver is "started" by Spark or "forked" from its task, which takes a class-data archive."""

    def choose(way: str) -> None:
        assert cds.ensure(settings().home, timeout=500) is not None
        monkeypatch.setattr(forked, "loaded", lambda: way == "forked")
        as_of_a_task(monkeypatch)

    return choose


@pytest.fixture(params=["started", "forked"])
def both_ways(request: pytest.FixtureRequest, how: Callable[[str], None], home: Path) -> None:
    """The test runs with a driver of either kind."""
    how(request.param)


def said(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@pytest.mark.slow
@pytest.mark.usefixtures("both_ways")
def test_the_application_gets_ids_and_the_environment(
    operator: Callable[..., ConduitSubmitOperator], work: list[Any], application: Path, tmp_path: Path, context: Any
) -> None:
    told = tmp_path / "told.json"
    application.write_text(
        "import json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ), sys.executable, os.getpgid(0)], open({str(told)!r}, 'w'))\n"
    )

    operator(drain_limit=30.0).execute(context)

    arguments, environment, python, group = json.loads(told.read_text())
    assert arguments == ["--pipeline", "toy", "--node", "destinations.out", "--run", "r1", "--drain-limit", "30"]
    assert environment["CONDUIT_HOME"] == os.environ["CONDUIT_HOME"]
    assert environment["CONDUIT_REDIS_URL"] == os.environ["CONDUIT_REDIS_URL"]
    assert python == sys.executable
    # Never a session or group of its own: a kill of the task's group must reach the driver.
    assert group == os.getpgid(0)
    assert work == [("toy", "destinations.out", "r1", False)]


CONNECTED = """
version: "2.2"
pipelines:
  - id: toy
    connectors:
      - {id: in, type: source, plugin: redis, settings: {connection: cache, streams: s}}
      - {id: out, type: destination, plugin: http, settings: {connection: api, url: /x}}
"""


@pytest.mark.usefixtures("both_ways")
def test_the_driver_is_given_the_connections_of_its_node_and_nobody_else_sees_them(
    operator: Callable[..., ConduitSubmitOperator],
    work: list[Any],
    application: Path,
    tmp_path: Path,
    home: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given a pipeline with a connection at either end
    build = operator()
    (home / "include" / "pipelines" / "toy.yaml").write_text(CONNECTED)
    for name in ("cache", "api"):
        found = {"conn_type": "http", "host": "h", "password": f"secret-of-{name}"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(found))
    told = tmp_path / "told.json"
    application.write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from conduit_tasks import connections\n"
        "api = connections.lookup('api').password\n"
        "lines = [p.read_bytes().decode(errors='replace') for p in Path('/proc').glob('[0-9]*/cmdline')]\n"
        f"json.dump([api, sorted(connections.current()), dict(os.environ), lines], open({str(told)!r}, 'w'))\n"
    )
    # When
    build.execute(context)
    # Then the driver has the one that it needs, and processes that it starts do not inherit it
    api, names, environment, lines = json.loads(told.read_text())
    assert (api, names) == ("secret-of-api", ["api"])
    assert "CONDUIT_CONNECTIONS" not in environment
    # And it is in no command line and no log
    assert not [line for line in lines if "secret-of-" in line]
    assert "secret-of-" not in caplog.text
    # And nothing of it stays with the task
    assert "secret-of-" not in str(vars(build)) + str(build.conf)


@pytest.mark.usefixtures("spark_connection")
def test_a_missing_connection_is_named_and_asked_for_again(
    operator: Callable[..., ConduitSubmitOperator], work: list[Any], home: Path, context: Any
) -> None:
    # Given a connection that nobody has
    build = operator()
    (home / "include" / "pipelines" / "toy.yaml").write_text(
        CONNECTED.replace("connection: api", "connection: nobody_has")
    )
    # Then the task fails with its name, and Airflow tries it again: a secrets backend may answer then
    with pytest.raises(ConduitError, match="nobody_has") as error:
        build.execute(context)
    assert not isinstance(error.value, AirflowFailException)


@pytest.mark.parametrize(
    ("way", "event", "code", "state"),
    [
        ("forked", "waiting", 3, AirflowSkipException),
        ("forked", "stopped", 4, AirflowFailException),
        ("forked", "held", 5, AirflowSkipException),
        ("forked", "failed", 1, NodeFailed),
        # Whatever the code is, Spark ends with that of its driver
        ("started", "stopped", 4, AirflowFailException),
    ],
)
def test_an_exit_code_becomes_a_state_with_the_reason(
    operator: Callable[..., ConduitSubmitOperator],
    work: list[Any],
    application: Path,
    context: Any,
    how: Callable[[str], None],
    way: str,
    event: str,
    code: int,
    state: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how(way)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    line = json.dumps({"event": event, "reason": "port 9000 refuses"})
    application.write_text(
        f"import os, sys\nsys.stderr.write('conduit {line}\\n')\nsys.stderr.flush()\nos._exit({code})\n"
    )

    with pytest.raises(AirflowException, match="port 9000 refuses") as raised:
        operator().execute(context)

    assert type(raised.value) is state
    left = [*tmp_path.glob("conduit-jvm-*"), *tmp_path.glob("conduit-*.properties")]
    assert left == [], "an application that ends at once leaves nothing behind"


@pytest.mark.parametrize(("owner", "attempts"), [("r1@host:7", 2), ("r2@host:7", 1)])
def test_what_an_earlier_attempt_of_the_same_run_left_at_work_is_waited_for_and_no_other_runs(
    operator: Callable[..., ConduitSubmitOperator],
    work: list[Any],
    application: Path,
    tmp_path: Path,
    context: Any,
    how: Callable[[str], None],
    owner: str,
    attempts: int,
) -> None:
    how("forked")
    # Given an application that finds its lease taken when it begins, and the next time not
    told = tmp_path / "told"
    line = json.dumps({"event": "held", "reason": "the lease is held", "owner": owner})
    application.write_text(
        f"import os, sys\ntold = {str(told)!r}\nfirst = not os.path.exists(told)\nopen(told, 'a').write('x')\n"
        f"if first:\n    sys.stderr.write('conduit {line}\\n')\n    sys.stderr.flush()\n    os._exit(5)\n"
    )
    if attempts == 1:
        with pytest.raises(AirflowSkipException, match="the lease is held"):
            operator().execute(context)
    else:
        operator().execute(context)
    assert told.read_text() == "x" * attempts
    assert len(work) == attempts, "each looked at the broker before it began"


@pytest.mark.usefixtures("both_ways")
def test_a_kill_takes_the_driver_and_its_workers_along(
    operator: Callable[..., ConduitSubmitOperator], work: list[Any], application: Path, tmp_path: Path, context: Any
) -> None:
    """A driver that lived on could go on sending. The workers here left the group, as Spark's do."""
    pids = tmp_path / "pids"
    application.write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], process_group=0)\n"
        f"open({str(pids) + '.side'!r}, 'w').write(f'{{os.getpid()}} {{worker.pid}}')\n"
        f"os.rename({str(pids) + '.side'!r}, {str(pids)!r})\n"
        "time.sleep(300)\n"
    )

    error = killed(operator(), context, pids.exists)

    assert still_running(processes(pids.read_text()), 240) == []
    assert isinstance(error, AirflowException)


def test_a_missing_connection_is_named_and_nothing_goes_to_yarn(
    operator: Callable[..., ConduitSubmitOperator], work: list[Any], context: Any
) -> None:
    with pytest.raises(AirflowFailException, match="'spark_elsewhere' does not exist"):
        operator(conn_id="spark_elsewhere").execute(context)

    assert work == []


def test_nothing_to_do_ends_skipped_without_a_jvm(
    operator: Callable[..., ConduitSubmitOperator], context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real look at a real broker: nothing was ever planned."""
    monkeypatch.setattr(
        "conduit_tasks.airflow.hook.SparkSubmitHook.submit", lambda *_: pytest.fail("a JVM was started")
    )

    for node in ("sources.one", "destinations.out"):
        with pytest.raises(AirflowSkipException):
            operator(node).execute(context)


def test_a_degraded_pipeline_fails_at_once_with_its_first_error(home: Path, context: Any) -> None:
    from conduit_tasks.airflow.tasks import plan
    from conduit_tasks.micro_batch.context import open_broker

    write_pipeline(home)
    broker = open_broker("toy")
    broker.lifecycle.fail("destinations.out", "disk on fire", "OSError")
    broker.lifecycle.fail("destinations.out", "no room", "OSError")
    broker.close()

    with pytest.raises(AirflowFailException, match="disk on fire"):
        plan("toy", "r1", context["params"])


def test_a_destination_that_was_not_chosen_is_skipped(
    operator: Callable[..., ConduitSubmitOperator], work: list[Any], context: Any
) -> None:
    context["params"]["destinations"] = ["log:b"]

    with pytest.raises(AirflowSkipException, match="not among"):
        operator().execute(context)

    assert work == []


@pytest.mark.parametrize(
    ("try_number", "max_tries", "cleared"),
    [(1, 2, False), (2, 2, False), (3, 2, False), (2, 3, True), (3, 3, False), (4, 5, True)],
)
def test_a_cleared_task_is_told_from_a_retried_one(try_number: int, max_tries: int, cleared: bool) -> None:
    assert was_cleared(SimpleNamespace(try_number=try_number, max_tries=max_tries), 2) is cleared


def test_lines_of_ours_are_read_and_others_left_alone() -> None:
    assert parse_event('conduit {"event": "progress", "n": 1}\n') == {"event": "progress", "n": 1}
    for line in ("WARN something", 'conduit {"event": "pro', "conduit [1]", 'say conduit {"a": 1}', ""):
        assert parse_event(line) is None


def test_an_event_reads_as_one_line() -> None:
    event = {"event": "progress", "node": "destinations.out", "delivered": 12000, "of": None}
    assert describe_event(event) == "progress: node destinations.out, delivered 12,000"


def killed(task: ConduitSubmitOperator, context: Any, ready: Callable[[], bool]) -> BaseException | None:
    """What `execute` raises if the task is ended once it is ready. As in Airflow, a signal's handler in the main thread
    calls `on_kill`, and `execute` goes on where it was."""

    def end() -> None:
        try:
            until(ready)
        finally:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: task.on_kill())
    ending = threading.Thread(target=end)
    ending.start()
    try:
        task.execute(context)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return error
    finally:
        ending.join()
        signal.signal(signal.SIGUSR1, before)
    return None


def processes(pids: str) -> list[psutil.Process]:
    """Those of these numbers that there are: any of them may end at any time."""
    found = []
    for pid in pids.split():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(pid)))
    return found
