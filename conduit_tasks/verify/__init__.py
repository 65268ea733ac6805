"""`conduit verify`: a pipeline of its own under a seeded schedule of crashes, and checks of its guarantees
(SEMANTICS X6)."""
