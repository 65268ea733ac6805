"""Files of a folder that can hold a pipeline, found by a look at their text.

A task needs one pipeline; among a thousand files, parsing them all would take longer than most tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

Wanted = Callable[[str], bool]
"""Function that returns whether an id is wanted."""

_ID = re.compile(r"""(?<![\w.-])["']?id["']?\s*:[ \t]*(\S[^\s,}]*)?""")
_PLAIN = re.compile(r"""(["']?)([A-Za-z0-9_:.-]+)\1""")


def can_hold(path: Path, wanted: Wanted) -> bool:
    """Returns whether a file names a wanted id, or an id that is known only after parsing (`${NAME}`, an anchor, an
    escape).

    True also if it cannot be read: loading it says why. A key that YAML allows to be written without the letters `id:`
    is not found.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return True
    for said in set(_ID.findall(text)):
        plain = _PLAIN.fullmatch(said)
        if plain is None or wanted(plain[2]):
            return True
    return False
