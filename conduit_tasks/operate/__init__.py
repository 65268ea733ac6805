"""Commands of operators: start and stop, status, positions, removal of what a source made in its system."""
