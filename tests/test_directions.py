"""Packages import downwards: from those that stand before them in ORDER (docs/architecture.md, "Packages")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "conduit_tasks"
ORDER = (
    *("record", "metrics", "pipes", "filters", "spool"),
    *("connectors", "processors", "pipeline"),
    *("broker", "delivery", "dead_letters", "ledger"),
    *("micro_batch", "resend", "changes"),
    *("spark", "gateway", "airflow", "stack", "cli", "demo", "verify"),
)
"""From the inside out."""
EXCEPTIONS = {
    ("cli/verify.py", "verify"),
    ("connectors/gateway.py", "broker"),
    ("connectors/gateway.py", "gateway"),
    ("connectors/kafka/message.py", "processors"),
    ("connectors/kafka/share.py", "broker"),
    ("connectors/postgres/destination.py", "processors"),
    ("connectors/redis/connector.py", "broker"),
    ("connectors/redis/client.py", "broker"),
    ("connectors/singer/schema.py", "processors"),
    ("connectors/spark.py", "spark"),
    ("micro_batch/frame_step.py", "spark"),
    ("micro_batch/frames.py", "spark"),
    ("pipeline/validate_plugins.py", "dead_letters"),
    ("processors/dedupe.py", "broker"),
    ("processors/schema_registry.py", "broker"),
    ("spark/submit.py", "stack"),
    ("stack/trial/__main__.py", "cli"),
    ("stack/trial/__main__.py", "demo"),
    ("stack/up.py", "cli"),
}
"""(module, a package behind its own that it imports). None is to be added without an ADR."""


def imported(tree: ast.Module) -> Iterator[str]:
    """Packages of the project that a module imports when it runs, wherever in it; not for types alone."""
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
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == PACKAGE.name and (found := rest.partition(".")[0]) in ORDER:
                yield found


def upwards() -> set[tuple[str, str]]:
    """(module, package) of each import from a package that stands behind the module's own."""
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE)
        here = where.parts[0]
        if len(where.parts) == 1:
            here = ""
        for package in imported(ast.parse(path.read_text())):
            if package != here and (not here or ORDER.index(package) > ORDER.index(here)):
                found.add((where.as_posix(), package))
    return found


def test_packages_import_from_those_before_them_alone() -> None:
    assert sorted(upwards() - EXCEPTIONS) == []


def test_an_exception_that_is_none_any_more_is_taken_out() -> None:
    assert sorted(EXCEPTIONS - upwards()) == []


def test_every_package_has_its_place() -> None:
    assert sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")) == sorted(ORDER)


def test_the_document_shows_the_same_order() -> None:
    picture = (ROOT / "docs/architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    shown = [word for word in picture.partition("```text")[2].partition("```")[0].split() if word.strip("→") in ORDER]
    assert tuple(shown) == ORDER
