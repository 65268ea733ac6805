"""Loads the script that `dedupe` runs."""

from __future__ import annotations

from conduit_tasks.redis_client.script import load, of_package

FOLDER = of_package("conduit_tasks.processors")

DEDUPE = load(FOLDER, "dedupe")
