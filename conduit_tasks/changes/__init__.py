"""Effects of a changed pipeline file on data in flight, and applying the file (docs/changes.md)."""
