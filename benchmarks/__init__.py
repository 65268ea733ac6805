"""Benchmarks: each prints a table that compares in one run. `make bench` runs all."""
