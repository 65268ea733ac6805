"""The pages' modules: their types are checked by `make check`, and the chart library is the one that was pinned."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES, SCRIPTS = ROOT / "conduit_tasks" / "airflow" / "pages", ROOT / "scripts" / "js"
MODULES = sorted(path for path in PAGES.glob("*.js") if path.name != "uplot.js")

WRONG = {
    "issues.js": ("issue.error_class", "issue.errorClass"),
    "plot.js": ("u.cursor.idx", "u.cursor.index"),
    "letters.js": ("ask(of(r.id", "ask(of(r.name"),
    "pipeline.js": ("age(d.lag.age)", "age(d.lag)"),
    "drawing.js": ("p.held", "p.full"),
    "stages.js": ("f.acked.done", "f.acked"),
    "live.js": ("look(known)", "look(news)"),
}
"""Module → what is right, and what is wrong in its place."""


def check(pages: Path) -> subprocess.CompletedProcess[str]:
    """Runs the type checker over the modules of a folder, by the project's own settings."""
    tsc = SCRIPTS / "node_modules" / ".bin" / "tsc"
    assert tsc.exists(), "TypeScript is missing: run scripts/js.sh"
    settings = json.loads((SCRIPTS / "tsconfig.json").read_text())
    settings["compilerOptions"]["paths"] = {"uplot": [str(SCRIPTS / "node_modules/uplot/dist/uPlot.d.ts")]}
    settings |= {"include": ["*.js", "*.d.ts"], "exclude": ["uplot.js"]}
    (pages / "tsconfig.json").write_text(json.dumps(settings))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(tsc), "-p", str(pages)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})


@pytest.mark.slow
def test_a_name_or_a_type_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    shutil.copytree(PAGES, pages)
    assert check(pages).stdout == ""
    # Given modules of which each has one
    wrong: dict[str, int] = {}
    for module, (before, after) in WRONG.items():
        text = (pages / module).read_text()
        wrong[module] = text[: text.index(before)].count("\n") + 1
        (pages / module).write_text(text.replace(before, after, 1))
    done = check(pages)
    assert done.returncode != 0
    # Then each is found where it is
    found = re.findall(r"^(?:.*/)?([\w.]+)\((\d+),", done.stdout, re.MULTILINE)
    assert {(name, int(line)) for name, line in found} >= wrong.items(), done.stdout


def test_a_module_is_checked_unless_it_is_not_ours_and_has_fewer_than_200_lines() -> None:
    assert len(MODULES) > 15
    for path in MODULES:
        text = path.read_text()
        assert "@ts-nocheck" not in text, path
        assert "@ts-ignore" not in text, path
        assert len(text.splitlines()) < 200, path


def test_the_chart_library_is_that_of_the_pinned_package_whose_types_are_used() -> None:
    taken = SCRIPTS / "node_modules" / "uplot" / "dist" / "uPlot.esm.js"
    assert (PAGES / "uplot.js").read_text() == taken.read_text()
