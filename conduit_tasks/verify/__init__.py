"""`conduit verify`: a pipeline of its own under a seeded schedule of crashes, then what must hold (SEMANTICS X6)."""
