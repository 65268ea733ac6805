"""Standalone connectors of Conduit: programs that speak gRPC, run unmodified (docs/connectors/standalone.md)."""
