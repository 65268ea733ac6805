"""Spark applications of the benchmarks: each prints one line `bench {json}` when it is done."""
