"""Replay: an interval of a pipeline's records again, to chosen destinations (SEMANTICS X3)."""
