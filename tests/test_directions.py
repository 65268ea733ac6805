"""Packages import downwards: from those that stand before them in ORDER (docs/architecture.md, "Packages")."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "conduit_tasks"
ORDER = (
    *("record", "metrics", "pipes", "filters", "templates", "spool"),
    *("redis_client", "schemas", "connectors", "processors", "pipeline"),
    *("broker", "delivery", "dead_letters", "ledger", "spark"),
    *("micro_batch", "resend", "operate", "changes"),
    *("application", "gateway", "airflow", "stack", "verify", "cli", "demo", "trial"),
)
"""From the inside out."""
EXCEPTIONS = {
    ("stack/trial.py", "trial"),
}
"""(module, a package behind its own that it imports). None is to be added without an ADR."""

NAMED = {
    ("connectors/registry.py", "gateway"): "a plugin's module, as an entry point names those of others",
    ("connectors/registry.py", "spark"): "the same",
    ("spark/daemon.py", "micro_batch"): "imported ahead, so that workers need not; works without",
    ("spark/keeper.py", "micro_batch"): "the same",
    ("stack/gateway.py", "cli"): "a process that is started, by its command line",
}
"""(module, a package behind its own that it names in text) → why: what is imported by name is not hidden from here."""

CIRCLE = frozenset({"spark.connect", "spark.plain", "spark.session"})
"""The only modules that import each other: a session is one of the two others, which run its `nothing` to warm up."""


class Seen(NamedTuple):
    """What a module has: full names of what it imports when it runs, wherever in it, not for types alone; and its
    texts that begin with the project's name."""

    imported: set[str]
    texts: set[str]


def seen_in(tree: ast.Module) -> Seen:
    """Looks at every node once."""
    seen, following = Seen(set(), set()), [(node, False) for node in ast.iter_child_nodes(tree)]
    while following:
        node, typing = following.pop()
        if isinstance(node, ast.ImportFrom) and not typing:
            seen.imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import) and not typing:
            seen.imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.startswith(f"{PACKAGE.name}."):
                seen.texts.add(node.value)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            following += [(each, True) for each in node.body] + [(each, typing) for each in node.orelse]
        else:
            following += [(each, typing) for each in ast.iter_child_nodes(node)]
    return seen


@cache
def seen() -> dict[str, Seen]:
    """Path of a module → what it has."""
    return {
        path.relative_to(PACKAGE).as_posix(): seen_in(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")
    }


def modules() -> dict[str, set[str]]:
    """Module → the modules of the project that it imports, all without the project's name."""
    names = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): each.imported
        for path, each in seen().items()
    }
    found: dict[str, set[str]] = {}
    for module, imported in names.items():
        wanted = (name.partition(".")[2] for name in imported if name.startswith(f"{PACKAGE.name}."))
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


def behind(package: str, module: str) -> bool:
    """Whether a package stands behind a module's own."""
    here = module.partition("/")[0] if "/" in module else ""
    return package != here and (not here or ORDER.index(package) > ORDER.index(here))


def upwards() -> set[tuple[str, str]]:
    """(module, package) of each import from a package that stands behind the module's own."""
    found: set[tuple[str, str]] = set()
    for module, each in seen().items():
        packages = {name.split(".")[1] for name in each.imported if name.startswith(f"{PACKAGE.name}.")} & set(ORDER)
        found |= {(module, package) for package in packages if behind(package, module)}
    return found


def test_packages_import_from_those_before_them_alone() -> None:
    assert sorted(upwards() - EXCEPTIONS) == []


def test_an_exception_that_is_none_any_more_is_taken_out() -> None:
    assert sorted(EXCEPTIONS - upwards()) == []


def named() -> set[tuple[str, str]]:
    """(module, package) of each text that is the name of a module of a package behind the module's own."""
    found: set[tuple[str, str]] = set()
    for module, each in seen().items():
        names = [text.split(".") for text in each.texts]
        found |= {(module, name[1]) for name in names if name[1] in ORDER and behind(name[1], module)}
    return found


def test_modules_that_are_named_in_text_are_no_way_around() -> None:
    assert named() == NAMED.keys()


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = modules()
    assert {name for name in found if name in reached(found, name)} == CIRCLE


def test_every_package_has_its_place() -> None:
    assert sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")) == sorted(ORDER)


def test_the_document_shows_the_same_order() -> None:
    picture = (ROOT / "docs/architecture.md").read_text().partition("## Packages")[2].partition("\n## ")[0]
    shown = [word for word in picture.partition("```text")[2].partition("```")[0].split() if word.strip("→") in ORDER]
    assert tuple(shown) == ORDER
