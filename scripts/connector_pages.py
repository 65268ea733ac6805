"""Keeps docs/connectors/ to what the connectors say of themselves.

A page `NAME.md` is written by hand, but for what stands between `<!-- source -->` and `<!-- /source -->`, and between
the same of `destination`: the options, from the specification. A page that is missing is begun with the summary.
`README.md` is written whole. `python scripts/connector_pages.py` writes; `--check` changes nothing and ends with 1
where a page is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from code_line import code_line

from conduit_tasks.cli.specs import default, meaning, options, summary
from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import Described, Source, Spec

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "connectors"

SIDES = ("source", "destination")
README = """# Connectors

Written by `python scripts/connector_pages.py`.

`builtin:` in front of a name and `@version` behind it are taken, as in Conduit. `conduit connectors describe NAME`
prints the options of one, and `conduit connectors test NAME` tries whether it [keeps its contract](testing.md).
A connector may [register handlers](../handlers.md#in-code) of what becomes of its records.
`standalone:NAME` is any of [Conduit's standalone connectors](standalone.md), which are programs of their own.

{code}

| name | source | destination | what it does |
|---|---|---|---|
"""


CODE = {
    "connectors/registry.py": "connectors by name",
    "connectors/plugins.py": "`builtin:`, `@version`, `standalone:`",
    "connectors/base.py": "the interfaces, handlers of a connector",
    "cli/connectors.py": "`describe` and `test`",
    "connectors/acceptance/__init__.py": "whether a connector keeps its contract",
}
"""The files below `conduit_tasks/` that decide what README.md says."""


def pages() -> dict[str, str]:
    """File name → text as it must be."""
    known = {name: found for name, found in registry.known().items() if name in registry.BUILTIN}
    rows = "".join(f"{_row(name, found)}\n" for name, found in known.items())
    out = {"README.md": README.format(code=code_line(CODE, "../../")) + rows}
    for name, found in known.items():
        path = FOLDER / f"{name}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else f"# {name}\n\n{summary(found)}\n"
        for side in SIDES:
            cls = getattr(found, side)
            if cls is not None:
                text = _with_options(text, side, cls.spec, _acked(cls) if side == "source" else "")
        out[path.name] = text
    return out


def _row(name: str, found: Described) -> str:
    sides = " | ".join("yes" if getattr(found, side) is not None else "" for side in SIDES)
    return f"| [`{name}`]({name}.md) | {sides} | {summary(found)} |"


def _acked(cls: type[Source]) -> str:
    """When the source is acked unless its file says otherwise, from its class."""
    when = {"delivered": "every destination that wants it has it", "stored": "it is stored in the spool"}
    return f"It is told that a record is dealt with when {when[cls.ack_on]} (`ack-on: {cls.ack_on}` by default).\n"


def _with_options(text: str, side: str, spec: Spec, more: str = "") -> str:
    between = re.compile(rf"(<!-- {side} -->\n).*?(<!-- /{side} -->)", re.DOTALL)
    if not between.search(text):
        text = f"{text.rstrip()}\n\n## As a {side}\n\n<!-- {side} -->\n<!-- /{side} -->\n"
    table = _options(spec) + (f"\n{more}" if more else "")
    return between.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text, count=1)


def _options(spec: Spec) -> str:
    if not spec.options:
        return "It takes no settings.\n"
    rows = [f"| `{o.name}` | {_cell(meaning(o))} | {_default(default(o))} |" for o in options(spec)]
    return "\n".join(["", "| setting | meaning | default |", "|---|---|---|", *rows, ""])


def _default(text: str) -> str:
    return text if text in ("", "required") else f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """See the module."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name, text in wanted.items() if there.get(name) != text)
    for name in stale:
        if "--check" in arguments:
            print(f"docs/connectors/{name} is stale: run `python scripts/connector_pages.py`", file=sys.stderr)  # noqa: T201
        else:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
