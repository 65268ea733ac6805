"""Script of the built-in registry."""

from __future__ import annotations

from conduit_tasks.redis_client.script import load, of_package

FOLDER = of_package("conduit_tasks.schemas")

SCHEMA_REGISTER = load(FOLDER, "schema_register")
