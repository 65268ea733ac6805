"""What the parts of a stack are told: secrets, state, Airflow's settings, the Connect server, a new home."""

from __future__ import annotations

import json
import pkgutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks.airflow.bundle import PipelineBundle
from conduit_tasks.settings import Settings
from conduit_tasks.spark.remote import TOKEN
from conduit_tasks.stack import connect
from conduit_tasks.stack.environment import ARGS, CONN, component_environment, load_secrets
from conduit_tasks.stack.layout import Layout, Process, State
from conduit_tasks.stack.starter import FILES

REPOSITORY = Path(__file__).parents[2]


def test_secrets_are_made_up_once_and_readable_by_their_owner_only(layout: Layout) -> None:
    first = load_secrets(layout)

    assert load_secrets(layout) == first
    assert json.loads(layout.passwords_file.read_text()) == {"admin": first["password"]}
    for path in (layout.secrets_file, layout.passwords_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700


def test_the_state_is_kept_private_and_whole(layout: Layout) -> None:
    state = State("unix:///x", "http://127.0.0.1:8080", {"redis": Process(1, 2.5)}, ["flights"])

    state.save(layout)

    assert State.load(layout) == state
    assert stat.S_IMODE(layout.state_file.stat().st_mode) == 0o600
    assert State.load(Layout(layout.home / "elsewhere")) == State()


def test_what_the_user_set_of_airflow_wins_where_we_do_not_rely_on_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "3")
    monkeypatch.setenv("AIRFLOW_HOME", "/somewhere/else")
    monkeypatch.setenv("CONDUIT_SPOOL", "s3://bucket")

    env = component_environment(layout, "http://127.0.0.1:8099", "unix:///x")

    assert env["AIRFLOW__CORE__PARALLELISM"] == "3"
    assert env["AIRFLOW_HOME"] == str(layout.airflow)
    assert env["AIRFLOW__API__PORT"] == "8099"
    assert env["CONDUIT_SPOOL"] == "s3://bucket"
    assert env["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] == "False"


def test_the_folder_of_dags_is_a_bundle_that_knows_of_pipeline_files(layout: Layout) -> None:
    env = component_environment(layout, "http://127.0.0.1:8099", "unix:///x")
    (bundle,) = json.loads(env["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
    # By Airflow's own name: what it knows of DAGs stays what it is.
    assert bundle["name"] == "dags-folder"
    assert pkgutil.resolve_name(bundle["classpath"]) is PipelineBundle


SAYS = """
import asyncio
from airflow import settings
from sqlalchemy import text

async def waits():
    async with settings.async_engine.connect() as connection:
        found = [(await connection.execute(text(f"PRAGMA {what}"))).scalar() for what in WHAT]
    await settings.async_engine.dispose()
    return found

WHAT = "busy_timeout", "journal_mode", "synchronous"
with settings.engine.connect() as connection:
    print(*[connection.execute(text(f"PRAGMA {what}")).scalar() for what in WHAT], *asyncio.run(waits()))
# More than the fifteen that Airflow gives by itself
print(len([settings.engine.connect() for _ in range(60)]))
"""


@pytest.mark.slow
def test_who_writes_to_airflows_sqlite_waits_a_minute_for_the_others_and_they_not_for_the_disk(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONN, raising=False)
    env = component_environment(layout, "http://127.0.0.1:8099", "unix:///x")
    said = subprocess.run([sys.executable, "-c", SAYS], env=env, capture_output=True, text=True, check=True)
    normal = "1"
    assert said.stdout.split()[-7:] == [*["60000", "wal", normal] * 2, "60"]
    # A server of the user's own has other settings
    monkeypatch.setenv(CONN, "postgresql://airflow@db/airflow")
    assert ARGS not in component_environment(layout, "http://127.0.0.1:8099", "unix:///x")


@pytest.mark.parametrize(
    ("set_by_the_user", "runs"),
    [
        ({}, True),
        ({"CONDUIT_SPARK_CONNECT": "off"}, False),
        ({"AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}'}, False),
    ],
)
def test_a_connect_server_is_the_default_unless_somebody_says_where_spark_is(
    set_by_the_user: dict[str, str], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONDUIT_SPARK_CONNECT", "AIRFLOW_CONN_SPARK_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_the_user.items():
        monkeypatch.setenv(name, value)
    assert connect.wanted() is runs


def test_components_are_told_of_the_connect_server_and_the_token_is_not_in_the_connection(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    monkeypatch.delenv(TOKEN, raising=False)
    # Given a home whose secrets were made before there was such a server
    own = load_secrets(layout)
    token = own.pop("connect")
    layout.secrets_file.write_text(json.dumps(own))

    with_one = component_environment(layout, "http://127.0.0.1:8099", "unix:///x", "sc://localhost:15010")
    without = component_environment(layout, "http://127.0.0.1:8099", "unix:///x")

    assert json.loads(with_one["AIRFLOW_CONN_SPARK_DEFAULT"]) == {
        "conn_type": "spark_connect",
        "host": "localhost",
        "port": 15010,
        "extra": {"master": "local[*]"},
    }
    assert len(with_one[TOKEN]) > 30
    assert with_one[TOKEN] == load_secrets(layout)["connect"] != token
    assert json.loads(without["AIRFLOW_CONN_SPARK_DEFAULT"]) == {"conn_type": "spark", "host": "local[*]"}
    assert TOKEN not in without


def test_commands_find_the_redis_of_the_stack_in_their_home(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_HOME", str(layout.home))
    monkeypatch.delenv("CONDUIT_REDIS_URL", raising=False)
    State(redis_url="unix:///run/r.sock?db=0").save(layout)

    assert Settings().redis_url == "unix:///run/r.sock?db=0"

    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://other:6379/0")
    assert Settings().redis_url == "redis://other:6379/0"


@pytest.mark.parametrize("name", ["dags/conduit.py", "dags/conduit_errors.py"])
def test_a_new_home_gets_the_dag_files_of_this_project(name: str) -> None:
    assert (REPOSITORY / name).read_text() == FILES[name]
