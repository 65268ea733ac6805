"""docker-compose.yaml and what belongs to it: what is published, who restarts what, and where secrets come from."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from ruamel.yaml import YAML

from conduit_tasks.airflow.hook import connect_address
from conduit_tasks.gateway.serve import Options
from conduit_tasks.record.units import parse_duration
from conduit_tasks.spark.remote import TOKEN
from conduit_tasks.stack.down import GRACE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yaml").read_text()
INIT = ROOT / "scripts" / "stack-init.sh"
ONE_OFF = {"airflow-init", "demo"}
"""They end when they are done, so they have no health."""


def load(path: Path) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(path.read_text()))


STACK = load(ROOT / "docker-compose.yaml")
SERVICES: dict[str, dict[str, Any]] = STACK["services"]


def variables(text: str) -> dict[str, str]:
    """Every `${NAME…}` of a compose file: name → what follows it (`:?…`, `:-…` or nothing)."""
    return dict(re.findall(r"(?<!\$)\$\{([A-Z0-9_]+)([^}]*)\}", text))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_restarted_watched_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] in (["no", "on-failure:3"] if name in ONE_OFF else ["unless-stopped"])
    assert ("healthcheck" in service) == (name not in ONE_OFF)
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert "privileged" not in service
    assert "network_mode" not in service


@pytest.mark.proves("C15")
def test_every_part_has_time_to_drain_and_what_the_tasks_need_ends_after_them() -> None:
    grace = {name: parse_duration(service.get("stop_grace_period", "10s")) for name, service in SERVICES.items()}
    # As long as the embedded stack gives, and longer than what the gateway promises to those it has taken from.
    assert grace["airflow-scheduler"] == GRACE["scheduler"]
    assert grace["gateway"] == GRACE["gateway"] > Options("", 0).grace
    assert all(grace[name] >= 30 for name in SERVICES if name not in {"receiver", *ONE_OFF})
    # Compose stops a service before those that it depends on.
    needed = {"airflow-apiserver", "postgres", "redis", "spark-master", "spark-worker-1", "spark-worker-2"}
    needed |= {"spark-connect"}
    assert needed <= set(SERVICES["airflow-scheduler"]["depends_on"])
    assert "redis" in SERVICES["gateway"]["depends_on"]
    # And the page says the same times.
    page = (ROOT / "docs" / "compose.md").read_text()
    rows = {line.split("|")[1].strip(): line.split("|")[3] for line in page.splitlines() if line.count("|") == 4}
    assert rows["scheduler"].strip() == f"{grace['airflow-scheduler']:g} s"
    assert rows["gateway"].strip().startswith(f"{grace['gateway']:g} s,")


def test_the_stack_has_all_its_parts() -> None:
    airflow = {f"airflow-{part}" for part in ("init", "apiserver", "scheduler", "dag-processor", "triggerer")}
    spark = {"spark-master", "spark-worker-1", "spark-worker-2", "spark-connect"}
    assert set(SERVICES) == airflow | spark | {"postgres", "redis", "kafka", "gateway", "receiver", "demo"}


def test_only_the_ui_and_the_gateway_are_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "airflow-apiserver": ["127.0.0.1:${CONDUIT_UI_PORT:-8080}:8080"],
        "gateway": ["127.0.0.1:${CONDUIT_GATEWAY_PORT:-8090}:8090"],
    }


def test_no_secret_has_a_default() -> None:
    secret = re.compile(r"PASSWORD|SECRET_KEY|FERNET_KEY|TOKEN|CLUSTER_ID")
    for name, rest in variables(TEXT).items():
        if secret.search(name):
            # The keys of an S3 API are for those who have one.
            assert rest.startswith(":?") or (name == "AWS_SECRET_ACCESS_KEY" and rest == ":-"), name


def test_images_are_pinned_to_a_version() -> None:
    images = {str(service["image"]) for service in SERVICES.values()}
    defaults = [re.fullmatch(r"\$\{[A-Z_]+:-([^}]+)\}", image) for image in images]
    assert all(defaults)
    pinned = [found[1] for found in defaults if found and found[1] != "conduit-tasks:local"]
    pinned += re.findall(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "Dockerfile").read_text(), re.M)
    assert len(pinned) == 4
    assert all(re.search(r":\d+\.\d+\.?\d*(-bookworm|-slim-bookworm)?$", image) for image in pinned), pinned


def test_redis_keeps_what_it_is_told_and_its_password_stands_in_no_list_of_processes() -> None:
    command = SERVICES["redis"]["command"][-1]
    for line in ("appendonly yes", "maxmemory-policy noeviction", "requirepass $$REDIS_PASSWORD"):
        assert line in command
    assert "redis-server - <<" in command


def test_a_killed_scheduler_or_spark_master_holds_nothing_up() -> None:
    airflow = SERVICES["airflow-scheduler"]["environment"]
    assert airflow["AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL"] == "15"
    assert airflow["AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD"] == "15"
    master = SERVICES["spark-master"]
    assert "-Dspark.deploy.recoveryMode=FILESYSTEM" in master["environment"]["SPARK_DAEMON_JAVA_OPTS"]
    assert "spark-recovery:/var/lib/spark/recovery" in master["volumes"]


def test_tasks_work_at_the_connect_server_and_submit_to_the_cluster_by_themselves_without_it() -> None:
    given = SERVICES["airflow-scheduler"]["environment"]
    connection = Connection.from_json(given["AIRFLOW_CONN_SPARK_DEFAULT"], conn_id="spark_default")
    address = connect_address(connection)
    server = SERVICES["spark-connect"]
    options = [word.split("=", 1) for word in server["command"] if word.startswith("--")]
    said = {name.removeprefix("--"): value for name, value in options}
    assert address is not None
    assert (address.host, str(address.port)) == ("spark-connect", said["port"])
    # The stack's own network has no TLS, and nothing else is on it.
    assert address.params == {"use_ssl": "false"}
    assert connection.extra_dejson["master"] == said["master"] == "spark://spark-master:7077"
    # Both have the token by the environment, and neither in what others can read.
    assert given[TOKEN] == server["environment"][TOKEN] == "${SPARK_CONNECT_TOKEN:?run scripts/stack-init.sh}"
    assert connection.password is None


def test_every_volume_is_used_and_its_folder_belongs_to_the_images_user() -> None:
    mounted = {v for s in SERVICES.values() for v in s.get("volumes", []) if not v.startswith((".", "$"))}
    assert {v.split(":")[0] for v in mounted} == set(STACK["volumes"])
    dockerfile = (ROOT / "Dockerfile").read_text()
    foreign = ("postgres-data", "redis-data", "kafka-data")
    for volume in mounted:
        name, folder = volume.split(":")[:2]
        assert name in foreign or folder in dockerfile, volume


@pytest.mark.parametrize("file", ["docker-compose.yaml", "compose/trial/s3.yaml"])
def test_everything_that_files_mention_is_there(file: str) -> None:
    text = (ROOT / file).read_text()
    for path in re.findall(r"\./(compose/[\w.-]+)", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"/opt/conduit/bin/([\w.]+)", text):
        assert os.access(ROOT / "compose" / path, os.X_OK), path
        assert f"compose/{path}" in (ROOT / "Dockerfile").read_text()


def test_the_class_data_archive_is_built_with_the_files_that_are_in_the_image_by_then(tmp_path: Path) -> None:
    before, _, _ = (ROOT / "Dockerfile").read_text().partition("RUN PYTHONPATH=/opt/build python")
    for line in re.findall(r"^COPY (conduit_tasks/.*)", before, re.M):
        *files, folder = line.split()
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(ROOT / file, tmp_path / folder)
    # Without what is installed beside the tests: this very project.
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from conduit_tasks.spark import cds; print(cds.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(tmp_path)), done.stderr


def secrets(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def test_secrets_are_random_private_and_never_overwritten(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for file in (one, other):
        subprocess.run([str(INIT), str(file)], check=True, capture_output=True)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = secrets(one)
    assert all(len(value) >= 22 for value in first.values())
    assert not set(first.values()) & set(secrets(other).values())

    one.write_text("REDIS_PASSWORD=mine\n")
    subprocess.run([str(INIT), str(one)], check=True, capture_output=True)
    again = secrets(one)
    assert again["REDIS_PASSWORD"] == "mine"
    assert again.keys() == first.keys()


def test_the_init_script_makes_all_that_the_stack_asks_for(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    subprocess.run([str(INIT), str(file)], check=True, capture_output=True)
    required = {name for name, rest in variables(TEXT).items() if rest.startswith(":?")}
    assert required == set(secrets(file))


def test_what_the_init_script_prints_holds_no_secret(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    said = subprocess.run([str(INIT), str(file)], check=True, capture_output=True, text=True)
    assert not any(value in said.stdout + said.stderr for value in secrets(file).values())


def test_the_fernet_key_is_one(tmp_path: Path) -> None:
    from cryptography.fernet import Fernet

    file = tmp_path / ".env"
    subprocess.run([str(INIT), str(file)], check=True, capture_output=True)
    Fernet(secrets(file)["AIRFLOW_FERNET_KEY"])


def test_secrets_stay_out_of_git_and_out_of_the_image() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {
        "Dockerfile",
        "requirements.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "conduit_tasks",
        "compose",
    }
