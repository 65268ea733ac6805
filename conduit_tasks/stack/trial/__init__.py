"""The compose stack, tried for real: up from nothing, run across two Spark workers, killed in parts, checked."""
