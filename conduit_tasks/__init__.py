"""Conduit Tasks: events from many sources to many destinations, with the state of every delivery kept."""

__version__ = "0.1.0"
