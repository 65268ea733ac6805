"""Clients of connectors that stay connected from one micro-batch to the next.

Only a process that works for one node alone keeps clients: the child of a node's application that does small work
(ADR 26), which ends with the run. Everywhere else a client is closed when a connector is. A client is given back only
if nothing of what it did is unsettled, so that whoever takes it finds it as if it was new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

MOST = 8
"""Limit of the clients that are kept; the one that was given first is closed for another."""

_kept: dict[Hashable, tuple[Any, Callable[[], object]]] = {}
_of = 0
"""Process that keeps them; 0: none does. One that was forked from it has the clients, but not their threads."""


def keep_here() -> None:
    """Lets this process keep clients from now on."""
    global _of  # noqa: PLW0603 - of the process
    _of = os.getpid()


def take(key: Hashable) -> Any:
    """Returns the client that was given back under this key, which is the caller's from now on; None: there is none."""
    if _of != os.getpid() or key not in _kept:
        return None
    client, _ = _kept.pop(key)
    return client


def give(key: Hashable, client: Any, close: Callable[[], object]) -> None:
    """Gives back a client, for whoever has the same key: all that it was made with. `close`: closes it, and is called
    at once if this process keeps none."""
    if _of != os.getpid():
        close()
        return
    if key in _kept:
        _kept.pop(key)[1]()
    while len(_kept) >= MOST:
        _kept.pop(next(iter(_kept)))[1]()
    _kept[key] = client, close


def close_all() -> None:
    """Closes the clients that are kept; before a fork that delivers."""
    while _of == os.getpid() and _kept:
        _kept.popitem()[1][1]()
