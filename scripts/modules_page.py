"""Writes docs/modules.md: every module and script in a line, from the first sentence of its docstring or header.

`python scripts/modules_page.py` writes it; `--check` changes nothing and ends with 1 if it is stale. Imports nothing of
the package.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "conduit_tasks"
PAGE = ROOT / "docs" / "modules.md"
COMMENTS = {".lua": "--", ".js": "//"}
HEAD = """# Every module in a line

Written by `python scripts/modules_page.py` from the first sentence of each module's docstring, and of the header of
each script in Lua and JavaScript. [CONTRIBUTING](../CONTRIBUTING.md#the-map) says what the packages are for,
[architecture](architecture.md) how they depend on each other.
"""


def page() -> str:
    """Returns the page's text: a table for each folder that has modules or scripts."""
    folders: dict[Path, list[tuple[str, str]]] = {}
    for file in sorted(PACKAGE.rglob("*")):
        if (said := _first_sentence(file)) is not None:
            folders.setdefault(file.parent, []).append((file.name, said))
    return HEAD + "".join(_table(folder, rows) for folder, rows in sorted(folders.items()))


def _table(folder: Path, rows: list[tuple[str, str]]) -> str:
    head = f"\n## {folder.relative_to(ROOT)}\n\n| module | what it is for |\n|---|---|\n"
    return head + "".join(f"| `{name}` | {said} |\n" for name, said in rows)


def _first_sentence(file: Path) -> str | None:
    """Returns None if the file is neither a module that says something nor a script."""
    if file.suffix == ".py":
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        if not text and file.name == "__init__.py":
            return None
    elif (mark := COMMENTS.get(file.suffix)) is not None:
        header = re.match(rf"(?:{mark}.*\n)*", file.read_text())
        text = re.sub(rf"(?m)^{mark} ?", "", header.group()) if header else ""
        if not text:
            return None  # another project's
    else:
        return None
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][.])\s+(?=[A-Z`])", paragraph)[0]
    return sentence.replace("|", "\\|")


def main() -> int:
    """Returns the exit code."""
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
