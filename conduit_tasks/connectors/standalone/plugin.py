"""Both sides of a standalone connector, as the registry finds them."""

from __future__ import annotations

from conduit_tasks.connectors.base import Described
from conduit_tasks.connectors.standalone.connector import variant
from conduit_tasks.connectors.standalone.destination import StandaloneDestination
from conduit_tasks.connectors.standalone.source import StandaloneSource


def described(plugin: str) -> Described:
    """Returns both sides of `standalone:NAME[@VERSION]`; starts nothing."""
    return Described(variant(StandaloneSource, plugin), variant(StandaloneDestination, plugin), plugin)
