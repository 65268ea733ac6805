"""Singer taps as sources: programs that print RECORD, SCHEMA and STATE messages."""
