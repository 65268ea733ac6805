#!/usr/bin/env python3
"""healthy.py URL [COMPONENT]: exit code 0 where the URL answers 200 and, for Airflow's health, the component's heart
beats. `airflow jobs check` says the same for three seconds of a core, at every look."""

import json
import sys
import urllib.request

# Raises for any status but 2xx.
with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:  # noqa: S310 - the compose file's own words
    said = answer.read()
if len(sys.argv) > 2 and json.loads(said)[sys.argv[2]]["status"] != "healthy":
    sys.exit(f"{sys.argv[2]} is not healthy: {said.decode()}")
