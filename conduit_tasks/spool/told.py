"""Note of what a connector was told of its life: that it is new, and with which settings. Stored beside the
micro-batches.

    <spool>/<pipeline>/told/<node>.json      {"<connector's own name>": what is kept of the settings, or null: deleted}

It is written once the connector has answered, before anything else is asked of it: what fails then (its `Open`, say)
does not have it told again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import orjson

from conduit_tasks.errors import SpoolError, SpoolGone
from conduit_tasks.spool.spool import Spool, folder_name


class Told:
    """The file of one node; picklable without `turn`. `turn`: a block in which nobody else tells, where several
    processes run one connector; None: this process is the only one."""

    def __init__(
        self, spool: Spool, pipeline: str, node: str, turn: Callable[[], AbstractContextManager[Any]] | None = None
    ) -> None:
        self._spool, self.turn = spool, turn
        self._path = f"{folder_name(pipeline)}/told/{folder_name(node)}.json"

    def all(self) -> dict[str, Any]:
        """Returns the connector's own name → what is kept; {} if there is no file. Raises SpoolError."""
        try:
            data = self._spool.get(self._path)
        except SpoolGone:
            return {}
        try:
            found: dict[str, Any] = orjson.loads(data)
        except ValueError as error:
            raise SpoolError(
                f"{self._spool.uri(self._path)} cannot be read: {error}; remove it to have the connector told again"
            ) from None
        return found

    def note(self, name: str, kept: Any) -> None:
        """Stores what is kept, durable on return; None: it was told that it is deleted. Raises SpoolError."""
        known = self.all()
        if name not in known or known[name] != kept:
            self._spool.put(self._path, orjson.dumps({**known, name: kept}))
