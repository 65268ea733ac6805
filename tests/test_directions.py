"""Packages import downwards: from those that stand before them in ORDER (docs/architecture.md, "Packages")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "conduit_tasks"
ORDER = (
    *("record", "metrics", "pipes", "filters", "templates", "spool"),
    *("connectors", "processors", "pipeline"),
    *("broker", "delivery", "dead_letters", "ledger"),
    *("micro_batch", "resend", "operate", "changes"),
    *("spark", "gateway", "airflow", "stack", "verify", "cli", "demo"),
)
"""From the inside out."""
EXCEPTIONS = {
    ("connectors/gateway.py", "broker"),
    ("connectors/gateway.py", "gateway"),
    ("connectors/kafka/share.py", "broker"),
    ("connectors/redis/connector.py", "broker"),
    ("connectors/standalone/schemas.py", "processors"),
    ("connectors/redis/client.py", "broker"),
    ("connectors/singer/schema.py", "processors"),
    ("connectors/spark.py", "spark"),
    ("micro_batch/frame_step.py", "spark"),
    ("micro_batch/frames.py", "spark"),
    ("pipeline/validate_plugins.py", "dead_letters"),
    ("processors/dedupe.py", "broker"),
    ("processors/schema_registry.py", "broker"),
    ("stack/trial/__main__.py", "cli"),
    ("stack/trial/__main__.py", "demo"),
}
"""(module, a package behind its own that it imports). None is to be added without an ADR."""


CIRCLE = frozenset({"spark.connect", "spark.plain", "spark.session"})
"""The only modules that import each other: a session is one of the two others, which run its `nothing` to warm up."""


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Full names of what a module imports when it runs, wherever in it; not for types alone."""
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def imports() -> dict[str, set[str]]:
    """Path of a module → full names of what it imports."""
    return {
        path.relative_to(PACKAGE).as_posix(): set(imported_names(ast.parse(path.read_text())))
        for path in PACKAGE.rglob("*.py")
    }


def modules() -> dict[str, set[str]]:
    """Module → the modules of the project that it imports, all without the project's name."""
    names = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): seen for path, seen in imports().items()
    }
    found: dict[str, set[str]] = {}
    for module, seen in names.items():
        wanted = (name.partition(".")[2] for name in seen if name.startswith(f"{PACKAGE.name}."))
        found[module] = {n if n in names else n.rpartition(".")[0] for n in wanted} & names.keys() - {module}
    return found


def reached(found: dict[str, set[str]], start: str) -> set[str]:
    """Modules that a module imports, by itself or by another."""
    behind: set[str] = set()
    following = [start]
    while following:
        new = found[following.pop()] - behind
        behind |= new
        following += new
    return behind


def upwards() -> set[tuple[str, str]]:
    """(module, package) of each import from a package that stands behind the module's own."""
    found: set[tuple[str, str]] = set()
    for module, names in imports().items():
        here = module.partition("/")[0] if "/" in module else ""
        for package in {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE.name}.")} & set(ORDER):
            if package != here and (not here or ORDER.index(package) > ORDER.index(here)):
                found.add((module, package))
    return found


def test_packages_import_from_those_before_them_alone() -> None:
    assert sorted(upwards() - EXCEPTIONS) == []


def test_an_exception_that_is_none_any_more_is_taken_out() -> None:
    assert sorted(EXCEPTIONS - upwards()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = modules()
    assert {name for name in found if name in reached(found, name)} == CIRCLE


def test_every_package_has_its_place() -> None:
    assert sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")) == sorted(ORDER)


def test_the_document_shows_the_same_order() -> None:
    picture = (ROOT / "docs/architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    shown = [word for word in picture.partition("```text")[2].partition("```")[0].split() if word.strip("→") in ORDER]
    assert tuple(shown) == ORDER
