"""The least a PySpark application does: a context, one job of nothing, the end."""

from __future__ import annotations

from pyspark import SparkContext

if __name__ == "__main__":
    sc = SparkContext.getOrCreate()
    sc.parallelize([0], 1).count()
    sc.stop()
    print("bench {}", flush=True)
