"""Delta tables, by delta-rs."""
