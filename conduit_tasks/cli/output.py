"""Output of commands: text for people, JSON for programs; results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class Format(StrEnum):
    """Values of `--format`."""

    text = "text"
    json = "json"


def print_json(value: Any) -> None:
    """Prints one JSON document, indented; values that JSON does not have (paths, dates) become text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints columns as wide as their contents; numbers to the right, with thousands separated."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[n]) for line in [list(headers), *cells]) for n in range(len(headers))]
    right = [bool(rows) and all(_is_number(row[n]) or row[n] is None for row in rows) for n in range(len(headers))]
    for line in [list(headers), *cells]:
        parts = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)]
        print("  ".join(parts).rstrip())


def note(text: str) -> None:
    """Prints a line for the person at the terminal: progress, advice."""
    print(text, file=sys.stderr)


def fail(text: str) -> None:
    """Prints an error, in one line."""
    print(f"conduit: {text}", file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
