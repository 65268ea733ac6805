"""Classes of events, which decide the expected outcome of each."""

PLAIN = 20
FILTERED, FAILED, LATE_FILTERED, LATE_FAILED, CLONED, SKIPPED, SPOILED, REFUSED, BROKEN, DEADLY, STUBBORN = range(11)
"""Classes: filtered or nacked by a source processor; the same by a pipeline processor; doubled there; filtered or
nacked by a processor of the destination `file`; refused by the receiver; no JSON; ends the process that reads it; fails
in a source processor until the operator has fixed it."""
