"""The pipelines of these tests: the demo's, and a small one for each fault, so that tests do not meet each other."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FLIGHTS = ("--refuse", "carrier=YV", "--order", "tailnum,moment")
"""The receiver's options for the demo's pipeline, as the demo starts it."""
NEVER = '"0 0 1 1 *"'
"""A schedule that does not come: the tests trigger every run."""

SOURCE = """
version: "2.2"
pipelines:
  - id: {id}
    schedule: {never}
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: in, type: source, plugin: file,
         settings: {{path: "data/{id}/*.jsonl", format: jsonl, settle: 0s, key: k}}}}
"""
WEB = """      - {{id: web, type: destination, plugin: http, settings: {{url: "{url}/{id}"}},
         delivery: {{timeout: 2s, retry: 2, max-unconfirmed: 16, order-by: key{more}}}}}
"""
FILE = """      - {{id: file, type: destination, plugin: file, settings: {{path: out/{id}.jsonl, format: payload}},
         delivery: {{timeout: 2s}}}}
"""
SLOW = ", rate-limit: 150"


def texts(url: str) -> dict[str, str]:
    """Name of the file → its text. `url`: of the receiver of all but the flights."""
    shapes = {
        "twice": (SOURCE + FILE + WEB, ""),
        "cleared": (SOURCE + FILE + WEB, ""),
        "killed": (SOURCE + WEB, SLOW),
        "drained": (SOURCE + WEB, SLOW),
    }
    made = {id: text.format(id=id, url=url, never=NEVER, more=more) for id, (text, more) in shapes.items()}
    flights = (ROOT / "include" / "pipelines" / "flights.yaml").read_text()
    return {**made, "flights": flights.replace('"*/15 * * * *"', NEVER)}
