"""Clients of connectors that stay connected from one micro-batch to the next.

Only a process that works for one node alone keeps clients: the child of a node's application that does small work
(ADR 26), which ends with the run. Everywhere else a client is closed when a connector is. A client is given back only
if nothing of what it did is unsettled, so that whoever takes it finds it as if it was new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from typing import Any

MOST = 8
"""Limit of the clients that are kept; the one that was given first is closed for another."""

LONGEST = 120.0
"""Seconds after which a client is not used any more, counted from when it was made: what forwards its connections may
forget one that is silent for a few minutes, and tells nobody."""

_kept: dict[Hashable, tuple[Any, Callable[[], object], float]] = {}
_of = 0
"""Process that keeps them; 0: none does. One that was forked from it has the clients, but not their threads."""


def keep_here() -> None:
    """Lets this process keep clients from now on."""
    global _of  # noqa: PLW0603 - of the process
    _of = os.getpid()


def take(key: Hashable) -> tuple[Any, float] | None:
    """Returns the client that was given back under this key, which is the caller's from now on, and when it was made;
    None: there is none."""
    if _of != os.getpid() or key not in _kept:
        return None
    client, close, made = _kept.pop(key)
    if time.monotonic() > made + LONGEST:
        close()
        return None
    return client, made


def give(key: Hashable, client: Any, close: Callable[[], object], made: float) -> None:
    """Gives back a client, for whoever has the same key: all that it was made with. `close`: closes it, and is called
    at once if this process keeps none. `made`: when it was made (`time.monotonic()`)."""
    if _of != os.getpid():
        close()
        return
    if key in _kept:
        _kept.pop(key)[1]()
    while len(_kept) >= MOST:
        _kept.pop(next(iter(_kept)))[1]()
    _kept[key] = client, close, made


def close_old() -> None:
    """Closes the clients that nobody takes any more: what they log while their servers are away would stay in
    memory."""
    for key, (_, _, made) in list(_kept.items()) if _of == os.getpid() else ():
        if time.monotonic() > made + LONGEST:
            _kept.pop(key)[1]()


def close_all() -> None:
    """Closes the clients that are kept; before a fork that delivers."""
    while _of == os.getpid() and _kept:
        _kept.popitem()[1][1]()
