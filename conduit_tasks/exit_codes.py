"""Exit codes by which the application of a node says how it ended: `application/app.py` and what ends it give them, the
submit operator turns them into the state of a task."""

WAITING = 3
"""Something outside is down, and is waited for: a destination, a source, Redis, Spark."""
STOPPED = 4
"""The pipeline, or the destination, is stopped."""
HELD = 5
"""Another application holds the node's lease."""
ENDED = 143
"""The application was asked to end (SIGTERM)."""
SAID = (0, 1, WAITING, STOPPED, HELD, ENDED)
"""Exit codes with which the application itself has told the broker how it ended."""
