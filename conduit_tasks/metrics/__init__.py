"""Figures for monitoring (docs/metrics.md)."""
