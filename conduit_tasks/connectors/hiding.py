"""Hides secrets that we gave to a program in its log and its errors, also as a URL or JSON has them, or line by
line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote, urlsplit

Hide = Callable[[str], str]
"""Returns a text with every secret in it as `***`."""
SHORTEST = 4
"""Characters that a secret has at least, to be hidden."""

LINE = 16
"""Characters that a line of a text of several has at least, to be hidden by itself."""


def hiding(secrets: Iterable[str]) -> Hide:
    """Returns a function that hides these texts, also as they are written in a URL or in JSON, and the passwords of
    those that are URLs."""
    hidden = {form for text in secrets for form in _forms(text) if len(form) >= SHORTEST}
    longest_first = sorted(hidden, key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "***")
        return text

    return hide


def password_of(url: str) -> str:
    """Returns the password in a URL as it is written there; "" if there is none."""
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _forms(text: str) -> Iterator[str]:
    for each in {text, unquote(password_of(text)) if "://" in text else ""}:
        yield from (each, quote(each, safe=""), quote(each), quote_plus(each), json.dumps(each)[1:-1])
        yield json.dumps(each, ensure_ascii=False)[1:-1]
        # Of a key, a log may hold a line.
        yield from (line for line in each.splitlines() if len(line) >= LINE)
