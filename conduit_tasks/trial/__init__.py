"""Trial of the compose stack: started from nothing, run across two Spark workers, killed in parts, checked."""
