"""URLs of the user's that may hold a password: which are taken, and that nothing of it is shown (docs/security.md).

Programs differ in where they see the password end when a character of it is not escaped, and then print, look up or
connect to a part of it. So such URLs are refused before anybody else reads them.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from conduit_tasks.errors import ConfigError

ESCAPES = "write @ as %40, / as %2F, # as %23, ? as %3F, [ as %5B and % as %25 in user and password"


def readable(url: str) -> bool:
    """Whether everybody finds the same user, password and host in it: one `@` at most, before the path, and no
    delimiter before that one; `%` only as an escape."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, _ = authority.rpartition("@")
    try:
        urlsplit(url)
    except ValueError:
        return False
    if "[" in login or "]" in login or re.search("%(?![0-9A-Fa-f]{2})", rest):
        return False
    return rest.count("@") == len(at)


def check_readable(url: str, option: str) -> None:
    """Raises ConfigError, naming `option`, which begins with the plugin's name."""
    if not readable(url):
        raise ConfigError(f"{option} cannot be read; {ESCAPES}")


def check_no_login(url: str, option: str, instead: str) -> None:
    """For a URL that is shown in messages. Raises ConfigError where it holds a user or password, or none can say."""
    if "@" in url or not readable(url):
        raise ConfigError(f"{option} must not hold a user or password; {instead}")
