"""Commands of operators: start and stop, status, positions, issues, the last records of a stage, records that are
tried, removal of what a source made in its system."""
