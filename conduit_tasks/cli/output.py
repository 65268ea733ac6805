"""Output of commands: text for people, JSON for programs; results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NoReturn

WIDE = 1 << 20
"""Limit of a table's width, in characters."""


class Format(StrEnum):
    """Values of `--format`."""

    text = "text"
    json = "json"


def print_json(value: Any) -> None:
    """Prints one JSON document, indented; values that JSON does not have (paths, dates) become text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints columns as wide as their contents, however wide the terminal is; numbers to the right, with thousands
    separated. Of a cell, whitespace becomes a blank and other control characters �: what a record or a server said
    must not move the cursor, or end a line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for n, header in enumerate(headers):
        right = bool(rows) and all(_is_number(row[n]) or row[n] in (None, "") for row in rows)
        table.add_column(header, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(cell(value)) for value in row])
    console = Console(width=WIDE, color_system=None)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        print(line.rstrip())


def note(text: str) -> None:
    """Prints a line for the person at the terminal: progress, advice."""
    print(text, file=sys.stderr)


def fail(text: str) -> None:
    """Prints an error, in one line."""
    print(f"conduit: {text}", file=sys.stderr)


def end_process(text: str) -> NoReturn:
    """Prints an error and ends this process, whatever it waits for, as an error that is raised would: exit code 1."""
    fail(text)
    os._exit(1)


def cell(value: Any) -> str:
    """Returns a value as a line of a terminal may have it, see `print_table`."""
    if value is None:
        return "-"
    if _is_number(value):
        return f"{value:,}"
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else " " if letter.isspace() else "\ufffd"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
