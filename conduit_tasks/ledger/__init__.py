"""The delivery ledger: what became of every record range at every destination in every attempt (SEMANTICS X5)."""
