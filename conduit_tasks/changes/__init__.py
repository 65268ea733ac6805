"""What a changed pipeline file does to data in flight, and applying it (docs/changes.md)."""
