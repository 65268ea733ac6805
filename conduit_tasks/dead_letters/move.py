"""Move of dead letters, parked records and their marks, for a destination that goes on under another id."""

from __future__ import annotations

from conduit_tasks.dead_letters.marks import FOLDER
from conduit_tasks.dead_letters.store import PARKED
from conduit_tasks.errors import ConduitError
from conduit_tasks.spool.store import open_store, put


def move(root: str, pipeline: str, old: str, new: str) -> int:
    """Moves the files of `old` to `new`: each is copied durably before it is deleted. Returns the number of files
    moved; called again after a crash, it goes on. Raises ConduitError."""
    store, moved = open_store(root), 0
    for base in (pipeline, f"{pipeline}/{PARKED}", f"{pipeline}/{FOLDER}"):
        before, after = f"{base}/destination={old}", f"{base}/destination={new}"
        try:
            for name, is_folder in store.names(before):
                if is_folder or name.startswith("."):
                    continue
                with store.open(f"{before}/{name}") as file:
                    put(store, f"{after}/{name}", file.read())
                store.delete(f"{before}/{name}")
                moved += 1
        except OSError as error:
            raise ConduitError(
                f"dead letters cannot be moved from {root}/{before} to {after}: {error}; fix it, and apply again"
            ) from error
    return moved
