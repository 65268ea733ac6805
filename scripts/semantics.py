"""Fills the last column of docs/semantics.md: the tests whose `proves` markers name each number.

`python scripts/semantics.py` writes it; `--check` changes nothing and ends with 1 where the page is stale or a rule is
broken. The other columns are written by hand; a number that is not kept yet has `**pending**: PART` in the third one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "semantics.md"
TESTS = ROOT / "tests"

NUMBERS = (
    *(f"C{n}" for n in range(1, 18)),
    *("O1", "O2", "O3", "O4", "O5", "O5r", "O6", "O6r"),
    *(f"T{n}" for n in range(1, 10)),
    *(f"B{n}" for n in range(1, 9)),
    *(f"X{n}" for n in range(1, 9)),
    *(f"I{n}" for n in range(1, 11)),
    *(f"F{n}" for n in range(1, 6)),
)
"""Every promise there is, in the page's order."""

PENDING = "**pending**"
_ROW = re.compile(r"^\| (?P<number>[A-Z]\d+r?) \| (?P<promise>.*) \| (?P<place>.*) \|(?P<proofs>[^|]*)\|$")
_LINK = re.compile(r"\]\(([^)#]+)\)")


@dataclass(frozen=True)
class Row:
    """One promise on the page. `places`: the files that enforce it, none where it is pending."""

    number: str
    promise: str
    places: tuple[Path, ...]
    pending: bool


def markers(folder: Path) -> dict[str, list[Path]]:
    """Number → test files below `folder`, sorted, with a marker `proves` that names it."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # Few have one, and to parse all takes seconds.
        for node in ast.walk(ast.parse(text)) if "proves" in text else ():
            if _is_marker(node):
                for argument in node.args:  # type: ignore[attr-defined]
                    if not isinstance(argument, ast.Constant):
                        raise SystemExit(f"{path}:{node.lineno}: write the numbers of `proves` out")  # type: ignore[attr-defined]
                    found[str(argument.value)].add(path)
    return {number: sorted(paths) for number, paths in found.items()}


def _is_marker(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "proves"):
        return False
    owner = node.func.value
    return isinstance(owner, ast.Attribute) and owner.attr == "mark"


def rows(text: str) -> list[Row]:
    """The promises of a page, in its order."""
    out = []
    for match in filter(None, map(_ROW.match, text.splitlines())):
        pending = match["place"].startswith(PENDING)
        places = () if pending else tuple((PAGE.parent / link).resolve() for link in _LINK.findall(match["place"]))
        out.append(Row(match["number"], match["promise"], places, pending))
    return out


def filled(text: str, proved: dict[str, list[Path]]) -> str:
    """The page with its last column as the markers say."""
    return "\n".join(_filled(line, proved) for line in text.splitlines()) + "\n"


def _filled(line: str, proved: dict[str, list[Path]]) -> str:
    match = _ROW.match(line)
    if match is None:
        return line
    links = ", ".join(_link(path) for path in proved.get(match["number"], []))
    return f"| {match['number']} | {match['promise']} | {match['place']} | {links or '–'} |"


def _link(path: Path) -> str:
    """`[broker/test_acks](../tests/broker/test_acks.py)`."""
    name = path.relative_to(TESTS).with_suffix("").as_posix()
    return f"[{name}](../{path.relative_to(ROOT).as_posix()})"


def faults(text: str, proved: dict[str, list[Path]]) -> list[str]:
    """Everything that is wrong with a page, but for its last column."""
    found = rows(text)
    numbers = [row.number for row in found]
    out = [f"{number} has no row" for number in NUMBERS if number not in numbers]
    out += [f"{number} has {numbers.count(number)} rows" for number in NUMBERS if numbers.count(number) > 1]
    out += [f"{number} is no promise: it has a row" for number in numbers if number not in NUMBERS]
    out += [
        f"{number} is no promise: a marker in {paths[0].relative_to(TESTS)} names it"
        for number, paths in sorted(proved.items())
        if number not in NUMBERS
    ]
    for row in found:
        if row.pending and row.number in proved:
            by = proved[row.number][0].relative_to(TESTS)
            out.append(f"{row.number} is pending, but {by} proves it: say where it is enforced")
        elif not row.pending and row.number not in proved:
            out.append(f"{row.number} has no test: mark the one that proves it, or write `{PENDING}: PART`")
        if not row.pending and not row.places:
            out.append(f"{row.number} does not say where it is enforced")
        missing = [place for place in row.places if not place.exists()]
        out += [f"{row.number} is enforced in {place}, which does not exist" for place in missing]
    return out


def main(arguments: list[str]) -> int:
    """See the module."""
    proved, text = markers(TESTS), PAGE.read_text(encoding="utf-8")
    fresh, wrong = filled(text, proved), faults(text, proved)
    if "--check" not in arguments and fresh != text:
        PAGE.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        wrong.append("the last column is stale: run `python scripts/semantics.py`")
    for fault in wrong:
        print(f"docs/semantics.md: {fault}", file=sys.stderr)  # noqa: T201 - a script's findings
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
