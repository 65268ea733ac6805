"""What is imported is declared, and what is declared is locked with the hashes of its files."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "conduit_tasks"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA_OF = {
    "aws": ("connectors/aws.py",),
    "delta": ("connectors/delta",),
    "iceberg": ("connectors/iceberg",),
    "kafka": ("connectors/kafka",),
    "mysql": ("connectors/mysql",),
    "postgres": ("connectors/postgres", "connectors/sql"),
    "openlineage": ("airflow/lineage.py",),
    "otel": ("metrics/otlp.py",),
}
"""Which modules may import what an extra brings; only where they use it, so that all of them load without it."""
LATE = frozenset(
    {"connectors/kafka/reports.py", *(f"connectors/iceberg/{name}.py" for name in ("changes", "columns", "commit"))}
)
"""Modules of an extra that are imported only where it is in use."""
NAMESPACES = {
    "airflow": "apache-airflow",
    "airflow.providers.apache.spark": "apache-airflow-providers-apache-spark",
    "airflow.providers.common.compat": "apache-airflow-providers-common-compat",
    "airflow.providers.openlineage": "apache-airflow-providers-openlineage",
    "airflow.providers.standard": "apache-airflow-providers-standard",
    "openlineage": "openlineage-python",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
"""Packages that several distributions share."""


def _requirements(lines: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines]


def _names(lines: list[str]) -> set[str]:
    return {canonicalize_name(r.name) for r in _requirements(lines)}


CORE = _names(PROJECT["dependencies"])
EXTRAS = {name: _names(lines) for name, lines in PROJECT["optional-dependencies"].items()}


def _imports(tree: ast.AST, *, loaded: bool = True) -> Iterator[tuple[str, bool]]:
    """(module, whether it is imported when the file is) of everything in the file but what only types need."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # An import stands in none of the others.
        if isinstance(node, ast.Import):
            yield from ((alias.name, loaded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", loaded) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from ((module, False) for module, _ in _imports(node))
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(node, loaded=loaded and not inside)


@cache
def _distributions() -> dict[str, list[str]]:
    return {name: sorted({canonicalize_name(d) for d in found}) for name, found in packages_distributions().items()}


def _distribution(module: str) -> set[str]:
    """What may bring this module."""
    shared = [name for name in NAMESPACES if f"{module}.".startswith(f"{name}.")]
    if shared:
        return {NAMESPACES[max(shared, key=len)]}
    return set(_distributions().get(module.partition(".")[0], [module]))


OURS = {*sys.stdlib_module_names, "conduit_tasks", "include", "tests", "benchmarks", "scripts"}


@cache
def _third_party(folder: Path = PACKAGE) -> dict[str, list[tuple[str, bool]]]:
    """Imported module → (file, whether when it is loaded)."""
    found = defaultdict(list)
    for file in sorted(folder.rglob("*.py")):
        for module, loaded in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            if module.partition(".")[0] not in OURS:
                found[module].append((file.relative_to(folder).as_posix(), loaded))
    return found


def test_every_package_that_is_imported_is_declared() -> None:
    missing = []
    for module, places in _third_party().items():
        brought = _distribution(module)
        if brought & CORE:
            continue
        extras = [name for name in EXTRA_OF if brought & EXTRAS[name]]
        missing += [
            f"{file} imports {module} of {sorted(brought)}"
            for file, loaded in places
            if (loaded and file not in LATE) or not any(file.startswith(EXTRA_OF[extra]) for extra in extras)
        ]
    assert not missing


@pytest.mark.parametrize(
    "folder", ["tests", "benchmarks", "scripts", "compose", "dags", "plugins", "examples", "include"]
)
def test_every_package_that_other_folders_import_is_declared(folder: str) -> None:
    declared = CORE.union(*EXTRAS.values())
    beside = {path.stem for path in (ROOT / folder).rglob("*.py")}
    missing = {
        module: places[0][0]
        for module, places in _third_party(ROOT / folder).items()
        if module.partition(".")[0] not in beside and not _distribution(module) & declared
    }
    assert not missing


def test_an_extra_is_needed_by_the_modules_that_it_is_for() -> None:
    # Given what the last test lets through, each rule is of use
    imported = {name for module in _third_party() for name in _distribution(module)}
    assert all(imported & EXTRAS[extra] for extra in EXTRA_OF)


def _locked() -> dict[str, tuple[Requirement, list[str]]]:
    text = (ROOT / "requirements.txt").read_text()
    entries = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    out = {}
    for entry in entries:
        written, *hashes = re.split(r"\s+--hash=", entry.strip())
        requirement = Requirement(written)
        out[canonicalize_name(requirement.name)] = (requirement, hashes)
    return out


def test_every_pin_is_exact_and_has_the_hashes_of_its_files() -> None:
    for name, (requirement, hashes) in _locked().items():
        assert [s.operator for s in requirement.specifier] == ["=="], name
        assert hashes, f"{name} has no hash: run scripts/lock.sh"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), name


def test_the_lock_names_no_server_and_no_folder() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert "//" not in text
    assert not re.search(r"^\s*(-i|-f|--index|--extra-index|--find-links|--trusted)", text, re.MULTILINE)


@pytest.mark.parametrize("group", ["", *PROJECT["optional-dependencies"]])
def test_what_is_declared_is_locked_at_a_version_that_fits(group: str) -> None:
    locked = _locked()
    for wanted in _requirements(PROJECT["optional-dependencies"][group] if group else PROJECT["dependencies"]):
        pin, _ = locked.get(canonicalize_name(wanted.name), (None, []))
        assert pin is not None, f"{wanted.name} is not locked: run scripts/lock.sh"
        [exact] = pin.specifier
        assert wanted.specifier.contains(Version(exact.version)), f"{pin} does not fit {wanted}: run scripts/lock.sh"


def test_the_lock_is_complete_as_it_is_installed_without_a_look_for_more() -> None:
    # Given the packages that are installed here, the locked ones, each with its extras
    locked, missing = _locked(), []
    for name, (pin, _) in locked.items():
        try:
            wanted = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:  # of another system (its marker says so)
            assert pin.marker is not None, f"{name} is not installed: run make env"
            continue
        extras = [{"extra": each} for each in ("", *pin.extras)]
        # When their own requirements are looked up
        for each in wanted:
            if each.marker is None or any(each.marker.evaluate(extra) for extra in extras):
                fits = canonicalize_name(each.name) in locked and each.specifier.contains(
                    distribution(each.name).version, prereleases=True
                )
                missing += [] if fits else [f"{name} wants {each}"]
    # Then each is locked, at a version that fits
    assert missing == []
