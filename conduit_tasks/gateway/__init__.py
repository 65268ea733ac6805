"""The ingest gateway: events over HTTP, answered when they are stored (SEMANTICS T2)."""
