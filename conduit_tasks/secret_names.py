"""Names that say that what they name is secret: of options and configurations of others, and of fields of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

OPTION = re.compile(r"pass(word|phrase|wd)?|secret|token|credential|private.?key|api.?key|access.?key", re.IGNORECASE)
"""Options of a `standalone:` connector, which does not say itself which of them are secret."""
CONFIG = re.compile(
    r"pass|pwd|secret|token|key|credential|auth|private|url|uri|dsn|connection|cert|sas|session|cookie|signature|bearer"
    r"|(?<![a-z])(pat|pin|sid)(?![a-z])",
    re.IGNORECASE,
)
"""Keys of a program's configuration that its log must not show, nor Redis keep: rather too many of them."""
FIELD = re.compile(
    r"pass(word|phrase|wd|code)|(?<![a-z])(pass|pwd|pin|cvv|cvc)(?![a-z])|secret|token|credential|authorization"
    r"|private[^a-z]?key|api[^a-z]?key|access[^a-z]?key",
    re.IGNORECASE,
)
"""Fields of records that people look at: keys, addresses and passengers are shown, or nothing could be looked for."""


def secret_values(settings: Iterable[Mapping[str, str]]) -> list[str]:
    """Returns the values of these settings whose names say that they are secret."""
    return [
        value
        for of in settings
        for name, value in of.items()
        if OPTION.search(name) or FIELD.search(name) or "auth." in name
    ]
