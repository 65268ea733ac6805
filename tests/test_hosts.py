"""Files for an Airflow that others host (examples/airflow/hosts): each sets what every installation needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from conduit_tasks.settings import Settings
from tests.test_dependencies import ROOT

HOSTS = ROOT / "examples" / "airflow" / "hosts"
NEEDED = {"CONDUIT_HOME", "CONDUIT_REDIS_URL", "CONDUIT_SPOOL", "CONDUIT_DEAD_LETTERS"}
SPARK = ("AIRFLOW_CONN_SPARK_DEFAULT", "spark_default")


@pytest.mark.parametrize("host", sorted(p.name for p in HOSTS.iterdir() if p.is_dir()))
def test_each_host_has_the_settings_that_an_installation_needs(host: str) -> None:
    text = "".join(p.read_text() for p in sorted((HOSTS / host).iterdir()))
    assert set(re.findall(r"CONDUIT_[A-Z_]+", text)) >= NEEDED
    assert any(name in text for name in SPARK)
    # And none that nobody reads
    known = {f"CONDUIT_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"CONDUIT_[A-Z_]+", text)) <= known
    assert host in (ROOT / "docs" / "your-airflow.md").read_text()


def test_the_chart_gets_the_image_that_is_built() -> None:
    values = yaml.safe_load((HOSTS / "kubernetes" / "values.yaml").read_text())
    dockerfile = (HOSTS / "kubernetes" / "Dockerfile").read_text()
    assert f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}" in dockerfile
    assert f"FROM apache/airflow:{values['airflowVersion']}-" in dockerfile
    assert f'"apache-airflow=={values["airflowVersion"]}"' in dockerfile
    assert {e["name"] for e in values["env"]} | {s["envName"] for s in values["secret"]} == {*NEEDED, SPARK[0]}
    # What may have a password is no plain value
    assert {s["envName"] for s in values["secret"]} == {"CONDUIT_REDIS_URL", SPARK[0]}


@pytest.mark.parametrize("file", sorted(HOSTS.rglob("*.sh")), ids=lambda p: p.parent.name)
def test_a_shell_can_read_it(file: Path) -> None:
    subprocess.run(["sh", "-n", str(file)], check=True, timeout=60)


@pytest.mark.parametrize("file", sorted(HOSTS.rglob("requirements.txt")), ids=lambda p: p.parent.name)
def test_requirements_name_our_package_and_extras_that_it_has(file: Path) -> None:
    import tomllib

    lines = [line for line in file.read_text().splitlines() if line and not line.startswith(("#", "--"))]
    found = [Requirement(line) for line in lines]
    assert [r.name for r in found] == ["conduit-tasks"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert found[0].extras <= set(extras)
