"""Regular expressions from users or records: RE2, whose search time is linear in the length of the text.

Python's `re` tries every way to match, and some patterns have 2^n of them. The syntax is that of Go's `regexp`:
no look-around, no back-references.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MEMORY = 2 << 20
"""Most bytes of a compiled pattern and its automaton; the library caches the last 128, and a record may bring its
own."""
LONGEST = 64 << 10
"""Most bytes of a pattern."""
_SINGLE_BYTE = re.compile(rb"(?:^|[^\\])(?:\\\\)*\\C")


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """Compiles a pattern to be matched against bytes of UTF-8. Raises ValueError that says what is wrong."""
    import re2

    raw = pattern.encode(errors="replace")
    if len(raw) > LONGEST:
        raise ValueError(f"a regular expression may have {LONGEST:,} bytes, not {len(raw):,}")
    if _SINGLE_BYTE.search(raw):
        raise ValueError(f"{pattern[:200]!r} is no regular expression: invalid escape sequence: \\C")
    options = re2.Options()
    options.max_mem, options.log_errors = MEMORY, False
    try:
        return re2.compile(raw, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else error
        raise ValueError(f"{pattern[:200]!r} is no regular expression: {said}") from None
