"""All Lua scripts of the project, whichever package runs them."""

from __future__ import annotations

from typing import Any

from conduit_tasks.broker import scripts as of_the_broker
from conduit_tasks.connectors.kafka import scripts as of_kafka
from conduit_tasks.processors import scripts as of_processors
from conduit_tasks.redis_client.script import Script
from conduit_tasks.schemas import scripts as of_schemas

MODULES: tuple[Any, ...] = (of_the_broker, of_kafka, of_processors, of_schemas)


def scripts() -> list[tuple[Any, str, Script]]:
    """Returns every script as it is now: the module that has it, its name there, and itself."""
    return [
        (module, name, found)
        for module in MODULES
        for name, found in list(vars(module).items())
        if isinstance(found, Script)
    ]
