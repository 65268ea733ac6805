"""A connection that names a Spark Connect server: the same application, without a JVM, the token out of sight."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow import forked
from conduit_tasks.airflow.hook import connect_address
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.errors import ConfigError
from conduit_tasks.spark.remote import Address
from tests.airflow.test_operator import killed, operator, work  # noqa: F401

Build = Callable[..., ConduitSubmitOperator]
TELL = "import json, os, sys\njson.dump([sys.argv, dict(os.environ)], open({told!r}, 'w'))\n"


@pytest.fixture(autouse=True, params=["started", "forked"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the task's process has loaded what an application needs, it is forked."""
    monkeypatch.setattr(forked, "loaded", lambda: request.param == "forked")
    return str(request.param)


@pytest.fixture
def server() -> Iterator[int]:
    """The port of something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


def connection(monkeypatch: pytest.MonkeyPatch, port: int, **more: Any) -> None:
    about = {"conn_type": "spark_connect", "host": "localhost", "port": port, "password": "hush-hush", **more}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(about))


def test_the_application_runs_by_itself_with_the_address_in_its_environment_and_the_token_in_no_command_line(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    server: int,
    application: Path,
    tmp_path: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given a connection of the provider's own type for Spark Connect
    connection(monkeypatch, server)
    told = tmp_path / "told.json"
    application.write_text(TELL.format(told=str(told)))
    # When a node's task runs
    operator(drain_limit=30.0, conf={"spark.sql.shuffle.partitions": 3, "spark.executor.memory": "9g"}).execute(context)
    # Then its arguments are those of a submit
    argv, environment = json.loads(told.read_text())
    ids = ["--pipeline", "toy", "--node", "destinations.out", "--run", "r1", "--drain-limit", "30"]
    assert argv == [str(application), *ids]
    # And what the session may be given goes to it; what only a server can be given does not
    assert environment["SPARK_REMOTE"] == f"sc://localhost:{server}"
    assert json.loads(environment["PYSPARK_REMOTE_INIT_CONF_0"]) == {"spark.sql.shuffle.partitions": "3"}
    assert environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "hush-hush"
    assert "hush" not in capsys.readouterr().out


@pytest.mark.parametrize(("code", "kind"), [(1, AirflowException)])
def test_how_it_ended_is_told_as_after_a_submit(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    server: int,
    application: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[Exception],
) -> None:
    connection(monkeypatch, server)
    line = json.dumps({"event": "failed", "reason": "the server ended"})
    application.write_text(f"import sys\nsys.stderr.write('conduit {line}\\n')\nsys.exit({code})\n")

    with pytest.raises(kind, match="the server ended"):
        operator().execute(context)


@pytest.mark.slow
def test_where_no_server_listens_the_task_says_so_and_submits_by_itself(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    application: Path,
    tmp_path: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection(monkeypatch, 1, extra={"master": "local[1]"})
    told = tmp_path / "told.json"
    application.write_text(TELL.format(told=str(told)))

    operator().execute(context)

    _, environment = json.loads(told.read_text())
    assert "SPARK_REMOTE" not in environment
    assert "sc://localhost:1 cannot be reached: this task submits by itself" in capsys.readouterr().out


def test_where_no_server_listens_and_the_connection_forbids_a_submit_the_task_fails_and_is_retried(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    application: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection(monkeypatch, 1, extra={"submit": False})

    with pytest.raises(Exception, match="cannot be reached, and the connection 'spark_default' says submit: false"):
        operator().execute(context)


def test_a_kill_asks_the_application_to_end_before_it_is_ended(
    operator: Build,  # noqa: F811
    work: list[Any],  # noqa: F811
    server: int,
    application: Path,
    tmp_path: Path,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has running at the server has to be interrupted by it."""
    connection(monkeypatch, server)
    pid, asked = tmp_path / "pid", tmp_path / "asked"
    application.write_text(
        "import os, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(asked)!r}, 'w').close(), sys.exit(143)))\n"
        f"open({str(pid) + '.side'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid) + '.side'!r}, {str(pid)!r})\n"
        "time.sleep(300)\n"
    )

    error = killed(operator(), context, pid.exists)

    assert asked.exists()
    assert not psutil.pid_exists(int(pid.read_text()))
    assert isinstance(error, AirflowException), "an application that was killed has not succeeded"


@pytest.mark.parametrize(
    ("about", "address"),
    [
        ({"conn_type": "spark", "host": "local[*]"}, None),
        ({"conn_type": "spark", "host": "spark://m", "port": 7077}, None),
        ({"conn_type": "spark", "host": "sc://m", "port": 15002}, "sc://m:15002"),
        ({"conn_type": "spark_connect", "host": "m"}, "sc://m:15002"),
        ({"conn_type": "spark_connect", "host": "sc://m:99"}, "sc://m:99"),
        ({"conn_type": "spark_connect", "host": "m", "login": "a b"}, "sc://m:15002/;user_id=a%20b"),
        ({"conn_type": "spark_connect", "host": "m", "extra": {"use_ssl": True}}, "sc://m:15002/;use_ssl=true"),
        ({"conn_type": "spark", "host": "sc://m:1/;x-id=7;token=t"}, "sc://m:1/;x-id=7"),
    ],
)
def test_a_connection_says_where(about: dict[str, Any], address: str | None) -> None:
    given = {"host": None, "port": None, "login": None, "password": None, **about}
    found = connect_address(SimpleNamespace(**{"extra_dejson": about.get("extra", {}), **given}))
    assert (str(found) if found else None) == address


@pytest.mark.parametrize("url", ["spark://m:7077", "sc://", "sc://m/path", "sc://m:x"])
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a Spark Connect server"):
        Address.parse(url)


def test_a_token_is_in_no_text_of_an_address() -> None:
    address = Address.parse("sc://m/;token=hush")
    assert "hush" not in f"{address} {address!r}"
    assert address.environment() == {"SPARK_REMOTE": "sc://m:15002", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "hush"}
