"""Settings from Airflow's connections: what each kind gives, who is asked, and what is never said or kept."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks import connections
from conduit_tasks.connections import Connection
from conduit_tasks.connectors.connection import made, named, resolved
from conduit_tasks.connectors.registry import BUILTIN, destination_class, known, source_class
from conduit_tasks.delivery.isolated import in_child
from conduit_tasks.errors import ConfigError, ConnectionMissing
from conduit_tasks.micro_batch import handed
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.load import load_file
from tests import fork

SECRET = "p@ss/w?rd#1"
ESCAPED = "p%40ss%2Fw%3Frd%231"


@pytest.fixture(autouse=True)
def nobody_was_asked() -> Iterator[None]:
    connections.give(None)
    connections._asked.clear()
    yield
    connections.give(None)
    connections._asked.clear()


def given(**fields: Any) -> None:
    connections.give({"c": Connection("c", **fields)})


def settings_of(plugin: str, **more: str) -> dict[str, str]:
    found = known()[plugin]
    cls: Any = found.destination or found.source
    return dict(resolved(cls.spec, {"connection": "c", **more}))


def test_every_connector_with_a_login_takes_a_connection() -> None:
    # Given the connectors with a URL, host, user, password or token
    takes = {name for name in BUILTIN for cls in sides(name) if cls.spec.connection is not None}
    # Then each takes a connection, on every side that it has
    assert takes == {"delta", "http", "iceberg", "kafka", "mysql", "postgres", "redis", "s3", "sql", "sqs"}
    assert all(cls.spec.connection for name in takes for cls in sides(name))


def sides(name: str) -> list[Any]:
    return [cls for cls in (known()[name].source, known()[name].destination) if cls is not None]


@pytest.mark.parametrize("plugin", ["sql", "postgres"])
def test_a_database_gets_its_url_with_what_is_special_escaped(plugin: str) -> None:
    # Given a connection as Airflow's PostgreSQL provider has it
    extra = {"sslmode": "verify-full", "cursor": "dictcursor"}
    given(type="postgres", host="db", login="me@x", password=SECRET, port=5433, schema="sales", extra=extra)
    # Then the URL has all of it but what is for Airflow's own client
    assert settings_of(plugin, table="t") == {
        "url": f"postgresql://me%40x:{ESCAPED}@db:5433/sales?sslmode=verify-full",
        "table": "t",
    }
    # And the connector reads it
    made(destination_class(plugin), {"connection": "c", "table": "t"})


def test_a_file_of_sqlite_is_the_host(tmp_path: Path) -> None:
    given(type="sqlite", host=f"{tmp_path}/x.db")
    assert settings_of("sql")["url"] == f"sqlite:///{tmp_path}/x.db"


def test_a_redis_gets_tls_and_its_database() -> None:
    given(type="redis", host="::1", password=SECRET, port=6380, extra={"db": 3, "ssl": True, "ssl_ca_certs": "/ca"})
    assert settings_of("redis", stream="s")["url"] == f"rediss://:{ESCAPED}@[::1]:6380/3?ssl_ca_certs=%2Fca"
    made(destination_class("redis"), {"connection": "c", "stream": "s"})


def test_kafka_gets_the_client_s_own_options_but_those_that_are_decided_here() -> None:
    # Given a connection as Airflow's Kafka provider has it
    extra = {"bootstrap.servers": "a:1,b:2", "group.id": "g", "security.protocol": "SASL_SSL", "sasl.password": SECRET}
    given(type="kafka", extra={**extra, "sasl.mechanism": "PLAIN", "sasl.username": "me", "error_cb": "x.y"})
    # Then
    assert settings_of("kafka", topic="t") == {
        "servers": "a:1,b:2",
        "librdkafka.security.protocol": "SASL_SSL",
        "librdkafka.sasl.password": SECRET,
        "librdkafka.sasl.mechanisms": "PLAIN",
        "librdkafka.sasl.username": "me",
        "topic": "t",
    }
    made(destination_class("kafka"), {"connection": "c", "topic": "t"})


def test_a_path_is_joined_with_the_address_of_an_http_connection() -> None:
    extra = {"X-Team": "data", "timeout": 5}
    given(type="http", host="api.example.org", schema="https", port=8443, login="me", password=SECRET, extra=extra)
    assert settings_of("http", url="/v1/events") == {
        "url": "https://api.example.org:8443/v1/events",
        "headers.X-Team": "data",
        "auth.basic.username": "me",
        "auth.basic.password": SECRET,
    }
    # And an address of the file's own, and its own way to sign in, are kept
    found = settings_of("http", url="https://other.example.org/x", **{"auth.bearer": "t"})
    assert found["url"] == "https://other.example.org/x"
    assert not [name for name in found if name.startswith("auth.basic")]


def test_a_password_alone_is_a_bearer_token() -> None:
    given(type="http", host="https://api.example.org/v2/", password=SECRET)
    assert settings_of("http") == {"url": "https://api.example.org/v2/", "auth.bearer": SECRET}
    assert settings_of("http", url="x")["url"] == "https://api.example.org/v2/x"
    assert settings_of("http", url="?a=b")["url"] == "https://api.example.org/v2/?a=b"


def test_amazon_s_services_get_keys_and_region() -> None:
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://localhost:1", "aws_session_token": "tok"}
    given(type="aws", login="AK", password=SECRET, extra=extra)
    assert settings_of("s3", bucket="b") == {
        "access-key-id": "AK",
        "secret-access-key": SECRET,
        "session-token": "tok",
        "region": "eu-central-1",
        "endpoint-url": "http://localhost:1",
        "bucket": "b",
    }
    made(destination_class("sqs"), {"connection": "c", "queue": "q"})
    # And a table in an object store gets them under that store's names
    assert settings_of("delta", path="s3://b/t")["storage.AWS_SECRET_ACCESS_KEY"] == SECRET


@pytest.mark.parametrize(
    ("type", "login", "extra", "setting"),
    [
        ("wasb", "account", {}, "storage.AZURE_STORAGE_ACCOUNT_NAME"),
        ("google_cloud_platform", "", {"key_path": "account"}, "storage.GOOGLE_SERVICE_ACCOUNT"),
    ],
)
def test_other_clouds_give_the_options_of_their_stores(
    type: str, login: str, extra: dict[str, Any], setting: str
) -> None:
    given(type=type, login=login, extra=extra)
    assert settings_of("delta", path="x")[setting] == "account"


def test_an_iceberg_catalog_gets_its_address_client_and_properties() -> None:
    # Given a connection as Airflow's Iceberg provider has it
    extra = {"warehouse": "s3://lake/", "s3.region": "eu-central-1", "s3.path-style-access": True}
    given(type="iceberg", host="https://catalog.example.org/ws", login="client", password=SECRET, extra=extra)
    assert settings_of("iceberg", table="a.t") == {
        "catalog.uri": "https://catalog.example.org/ws",
        "catalog.credential": f"client:{SECRET}",
        "catalog.warehouse": "s3://lake/",
        "catalog.s3.region": "eu-central-1",
        "catalog.s3.path-style-access": "true",
        "table": "a.t",
    }
    made(destination_class("iceberg"), {"connection": "c", "table": "a.t"})


def test_the_file_wins_over_the_connection() -> None:
    given(type="aws", login="AK", password=SECRET, extra={"region_name": "eu-central-1"})
    assert settings_of("s3", bucket="b", region="us-east-1")["region"] == "us-east-1"


@pytest.mark.parametrize(
    ("plugin", "fields", "says"),
    [
        ("postgres", {"type": "mysql"}, "'c' is of type 'mysql'; it must be postgres or postgresql"),
        ("postgres", {"type": "postgres", "extra": {"iam": True}}, "iam: true"),
        ("s3", {"type": "aws", "extra": {"role_arn": "arn:x"}}, "role_arn"),
    ],
)
def test_a_connection_that_cannot_serve_is_refused_and_nothing_secret_said(
    plugin: str, fields: dict[str, Any], says: str
) -> None:
    given(password=SECRET, **fields)
    with pytest.raises(ConfigError) as error:
        settings_of(plugin)
    assert str(error.value).startswith(f"{plugin}: option 'connection': ")
    assert says in str(error.value)
    assert SECRET not in str(error.value)


def test_a_connector_without_a_login_takes_no_connection() -> None:
    with pytest.raises(ConfigError, match="unknown option 'connection'"):
        made(destination_class("file"), {"path": "x", "connection": "c"})


def test_the_text_of_a_connection_has_no_secret() -> None:
    assert SECRET not in repr(Connection("c", password=SECRET, extra={"token": SECRET}))


def test_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a connection as Airflow's components have it in their environment
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "redis", "host": "r", "password": SECRET}))
    # Then
    assert settings_of("redis")["url"] == f"redis://:{ESCAPED}@r/0"


def test_a_given_connection_is_asked_for_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a driver that was given the connections of its pipeline
    monkeypatch.setenv("AIRFLOW_CONN_D", json.dumps({"conn_type": "redis", "host": "r"}))
    monkeypatch.setenv(connections.VARIABLE, connections.dumps([Connection("c", "redis", "r")]))
    # Then it knows those alone
    assert connections.lookup("c").host == "r"
    with pytest.raises(ConnectionMissing, match="was not given"):
        connections.lookup("d")
    # And processes that it starts do not inherit them
    assert connections.VARIABLE not in os.environ


@pytest.mark.slow
def test_a_child_in_a_process_of_its_own_has_them() -> None:
    given(type="redis", host="r", password=SECRET)
    assert in_child(settings_of, "redis", forks=False)["url"] == f"redis://:{ESCAPED}@r/0"
    assert in_child(settings_of, "redis", forks=True)["url"] == f"redis://:{ESCAPED}@r/0"


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: redis, settings: {connection: cache, streams: s}}
      - id: out
        type: destination
        plugin: http
        settings: {connection: api, url: /events}
        dead-letter-queue: {plugin: sql, settings: {connection: warehouse, table: letters}, window-size: 0}
"""


def validated(home: Path, text: str = PIPELINE) -> list[tuple[int, str, str]]:
    file = home / "include" / "pipelines" / "p.yaml"
    file.write_text(text)
    return [(f.line, f.code, f.message) for f in load_file(file, plugins=True).findings]


@pytest.fixture
def airflow(tmp_path: Path) -> dict[str, str]:
    """The environment of an Airflow whose database has the connection `cache`; it has `warehouse` itself."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__FERNET_KEY": "Z2VoZWltZ2VoZWltZ2VoZWltZ2VoZWltZ2VoZWltMTI=",
        "AIRFLOW_CONN_WAREHOUSE": f"postgres://me:{ESCAPED}@db/x",
    }
    # A whole `airflow db migrate` takes half a minute of CPU.
    add = (
        "from airflow.models.connection import Connection as C\n"
        "C.metadata.create_all(settings.engine, [C.metadata.tables[n] for n in ('team', 'connection')])\n"
        "s = settings.Session()\n"
        f"s.add(C('cache', conn_type='redis', host='r', password={SECRET!r}))\ns.commit()\n"
    )
    (tmp_path / "airflow").mkdir()
    with fork.script(fork.AIRFLOW + add, environment=environment) as adding:
        said = adding.stdout.read()
        assert adding.wait() == 0, said
    return environment


def conduit(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conduit_tasks.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_validate_names_what_is_missing_where_airflow_can_be_asked(home: Path, airflow: dict[str, str]) -> None:
    # Given a pipeline with three connections, of which Airflow's database has one, and the environment one
    (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    # When
    done = conduit(airflow, "validate")
    # Then what is missing is named at its place
    assert done.returncode == 1, done.stderr
    assert "p.yaml:10:20: error E216 the Airflow connection 'api' does not exist. Add it: " in done.stdout
    assert "cache" not in done.stdout
    assert done.stdout.count(" error ") == 1, done.stdout
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.slow
def test_validate_is_content_where_airflow_cannot_be_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a machine on which Airflow's database cannot be reached
    (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    nowhere = {**os.environ, "AIRFLOW_HOME": str(home / "none"), "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False"}
    # When
    done = conduit(nowhere, "validate")
    # Then everything else is checked
    assert (done.returncode, done.stdout) == (0, "")
    (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE.replace("table: letters", "tabel: letters"))
    assert "unknown option 'tabel'" in fork.conduit("validate", environment=nowhere, airflow=True).stdout


def test_a_wrong_type_is_named_at_its_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections.give({name: Connection(name, "redis", "r") for name in ("cache", "api", "warehouse")})
    found = validated(home)
    assert [(line, code) for line, code, _ in found] == [(10, "E216"), (11, "E216")]
    assert "http: option 'connection': the Airflow connection 'api' is of type 'redis'" in found[0][2]


def test_loading_a_file_for_its_dag_asks_nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str) -> Connection:
        raise AssertionError(f"asked for {name}")

    monkeypatch.setattr(connections, "_ask", asked)
    file = home / "include" / "pipelines" / "p.yaml"
    file.write_text(PIPELINE)
    assert load_file(file).errors == []


def test_executors_get_them_sealed(home: Path) -> None:
    # Given a driver that has the connections of its pipeline
    validated(home)
    connections.give({name: Connection(name, "redis", "r", password=SECRET) for name in ("cache", "api", "warehouse")})
    sent: list[bytes] = []

    def run_all(function: Any, pieces: Any) -> list[Any]:
        sent.append(pickle.dumps((function, pieces)))
        connections.give(None)
        function, pieces = pickle.loads(sent[0])
        return [function(piece) for piece in pieces]

    with opened("p", "r") as context:
        assert handed.names(context.pipeline) == ["api", "cache", "warehouse"]
        # When it has executors work
        assert handed.names(context.pipeline, "sources.in") == ["cache"]
        assert handed.names(context.pipeline, "destinations.out") == ["api", "warehouse"]
        run = handed.handing_over(context, "destinations.out", run_all)
        found = run(_password, ["warehouse", "api"])
        key = context.broker.lifecycle.sealing_key()
        everything = " ".join(str(context.broker.access.hash(name)) for name in (context.broker.keys.pipeline,))
    # Then they have them, but what was sent does not show them, and neither does Redis
    assert found == [SECRET, SECRET]
    assert SECRET.encode() not in sent[0]
    assert key.encode() not in sent[0]
    assert SECRET not in everything


def _password(name: str) -> str:
    return connections.lookup(name).password


def test_a_pipeline_without_connections_is_handed_over_as_it_is(home: Path) -> None:
    validated(
        home,
        PIPELINE.replace("connection: cache", "url: 'redis://x'")
        .replace("connection: api, url: /events", "url: 'http://x/'")
        .replace("connection: warehouse", "url: 'sqlite:///x'"),
    )
    with opened("p", "r") as context:
        assert handed.handing_over(context, "destinations.out", _none) is _none
        assert context.broker.access.field(context.broker.keys.pipeline, "sealing") is None


def _none(function: Any, pieces: Any) -> list[Any]:
    return []


def test_the_name_of_a_connection_is_what_a_connector_takes() -> None:
    assert named(source_class("redis").spec, {"connection": " c "}) == "c"
    assert named(source_class("file").spec, {"connection": "c"}) == ""
