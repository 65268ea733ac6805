"""Address of a Delta table, and the options of its object store, which may hold keys."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import settings as installation
from conduit_tasks.urls import check_no_login

STORAGE = "storage."
"""Options of the object store, passed on: `storage.AWS_ACCESS_KEY_ID` and the like."""


def table_uri(path: str) -> str:
    """Returns a URI as it is, a folder relative to home. Raises ConfigError for file://."""
    if path.startswith("file://"):
        raise ConfigError("delta: option 'path': write a folder without file://")
    return path if "://" in path else installation().path(path)


def storage_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the options under their names in the object store."""
    return {name.removeprefix(STORAGE): value for name, value in settings.items() if name.startswith(STORAGE)}


def check_storage(settings: Mapping[str, str]) -> None:
    """Raises ConfigError if the address of a store holds a password: the client's errors show it."""
    for name, value in settings.items():
        if name.startswith(STORAGE) and "://" in value:
            check_no_login(value, f"delta: option '{name}'", "give the keys as options of their own")
