"""Avro schemas: the built-in registry, and what its users make of a schema. Knows no connector and no processor."""
