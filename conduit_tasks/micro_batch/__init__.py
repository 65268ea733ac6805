"""The life of a micro-batch: plan, read, process, seal, deliver, ack, collect (docs/architecture.md)."""
