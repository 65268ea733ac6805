"""The ingest gateway: takes events over HTTP and answers when they are stored (SEMANTICS T2)."""
