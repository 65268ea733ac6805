"""The delivery ledger: outcome of every record range at every destination in every attempt (SEMANTICS X5)."""
