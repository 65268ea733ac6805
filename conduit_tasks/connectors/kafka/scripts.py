"""Loads the two scripts that `share.py` runs."""

from __future__ import annotations

from conduit_tasks.redis_client.script import load, of_package

FOLDER = of_package("conduit_tasks.connectors.kafka")

SHARE = load(FOLDER, "share")
SHARED = load(FOLDER, "shared")
