"""Checks of URLs that may hold a password: URLs that parsers read differently are refused (docs/security.md).

If a character of the password is not escaped, programs disagree where the password ends, and then print, look up or
connect to a part of it. So such URLs are refused before any other program reads them.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from conduit_tasks.errors import ConfigError

ESCAPES = "write @ as %40, / as %2F, # as %23, ? as %3F, [ as %5B and % as %25 in user and password"


def readable(url: str) -> bool:
    """Returns whether every parser finds the same user, password and host in the URL: at most one `@`, before the path,
    no delimiter before that `@`, and `%` only as an escape."""
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
    """Raises ConfigError if the URL is not `readable`; names `option`, which begins with the plugin's name."""
    if not readable(url):
        raise ConfigError(f"{option} cannot be read; {ESCAPES}")


def check_no_login(url: str, option: str, instead: str) -> None:
    """Raises ConfigError if a URL that is shown in messages holds, or may hold, a user or password."""
    if "@" in url or not readable(url):
        raise ConfigError(f"{option} must not hold a user or password; {instead}")
