"""Statements of the binary log, told apart by their words: those that begin or end a transaction, empty a table, or
change rows unseen."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RUN = re.compile(r"/\*M?!\d*(.*?)\*/", re.DOTALL)
"""A comment that the server runs."""
_NOTES = re.compile(r"/\*.*?\*/|^\s*(?:(?:#|--\s)[^\n]*\n\s*)+", re.DOTALL)
_SETTING = re.compile(r"SET\s+STATEMENT\b.*?\bFOR\s+", re.IGNORECASE | re.DOTALL)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
TRUNCATE = re.compile(rf"TRUNCATE\b\s*(?:TABLE\b\s*)?{_NAME}(?:\s*\.\s*{_NAME})?", re.IGNORECASE)
REMOVES = re.compile(
    r"ALTER\b.*\b((TRUNCATE|DROP|EXCHANGE)\s+PARTITION\b|(IMPORT|DISCARD)\s+TABLESPACE\b)"
    r"|CREATE\s+OR\s+REPLACE\s+TABLE\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that remove or exchange rows without naming them."""
ROWS_BY_STATEMENT = re.compile(r"(INSERT|UPDATE|DELETE|REPLACE|LOAD)\b", re.IGNORECASE)
FUNCTION = re.compile(r"SELECT\b", re.IGNORECASE)
"""A function that changed rows, called by a statement that did not."""
WAYS = """
SELECT table_name FROM information_schema.tables WHERE table_type = 'VIEW' AND table_schema NOT IN ('sys', 'mysql')
UNION SELECT event_object_table FROM information_schema.triggers WHERE event_object_schema NOT IN ('sys', 'mysql')
"""
"""Views, and tables with triggers: a statement on them may change a table that it does not name."""
BEGINS = re.compile(r"(BEGIN|START\s+TRANSACTION|XA\s+START|XA\s+BEGIN)\b", re.IGNORECASE)
SAVEPOINT = re.compile(rf"(SAVEPOINT|ROLLBACK\s+TO(?:\s+SAVEPOINT)?)\s*{_NAME}\s*$", re.IGNORECASE)
ENDS = re.compile(r"(COMMIT|ROLLBACK|XA\s+COMMIT\b.*|XA\s+ROLLBACK\b.*)\s*$", re.IGNORECASE | re.DOTALL)


def names_one(text: str, names: Iterable[str]) -> bool:
    """Returns whether a statement has one of these names as a word."""
    return any(re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) for name in names)


def unquoted(name: str) -> str:
    """Returns a name without its quotes."""
    quote = name[:1]
    return name[1:-1].replace(2 * quote, quote) if quote in ("`", '"') else name


def bare(text: str) -> str:
    """Returns a statement without what may stand before it, or is hidden in comments that the server runs."""
    text = _RUN.sub(r" \1 ", text)
    text = _NOTES.sub(" ", text).lstrip()
    return _SETTING.sub("", text)
