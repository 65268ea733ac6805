"""Earlier ids of destinations (`conduit apply --rename`), stored beside the files that use them: sealed manifests and
the ledger.

    <spool>/<pipeline>/names.json      {"<id>": ["<earlier>", …]}

A sealed micro-batch never changes (invariant 6), so it keeps the earlier id.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from conduit_tasks.errors import SpoolError
from conduit_tasks.spool.spool import Spool, folder_name


def names(spool: Spool, pipeline: str) -> dict[str, list[str]]:
    """Returns id → earlier ids, the latest first. Raises SpoolError."""
    path = _path(pipeline)
    try:
        with spool.store.open(path) as file:
            found: dict[str, list[str]] = orjson.loads(file.read())
            return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SpoolError(
            f"{spool.uri(path)} cannot be read: {error}; restore it, or remove it to forget them"
        ) from error


def renamed(spool: Spool, pipeline: str, old: str, new: str) -> None:
    """Notes that `old` is called `new` from now on; durable on return. Idempotent. Raises SpoolError."""
    known = names(spool, pipeline)
    earlier = list(dict.fromkeys([old, *known.get(old, ()), *known.get(new, ())]))
    if known.get(new) != earlier:
        spool.put(_path(pipeline), orjson.dumps({**known, new: [id for id in earlier if id != new]}))


def known_as(spool: Spool, pipeline: str, destination: str, matched: Mapping[str, int]) -> str:
    """Returns the id that a sealed micro-batch has for a destination: a key of its `matched`, else the present id."""
    if destination in matched:
        return destination
    earlier = names(spool, pipeline).get(destination, ())
    return next((id for id in earlier if id in matched), destination)


def _path(pipeline: str) -> str:
    return f"{folder_name(pipeline)}/names.json"
