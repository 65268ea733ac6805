"""Three changes to every JSON line by hand: one `mapInArrow` pass with orjson, written as Parquet.

`mapped.py EVENTS OUT`. Prints `bench {json}`: seconds and CPU without the session's start, and rows written.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import measured


def change(batches: Iterator[Any]) -> Iterator[Any]:
    """Sets, renames and excludes a field."""
    import orjson
    import pyarrow as pa

    for batch in batches:
        out = []
        for line in batch.column(0).to_pylist():
            event = orjson.loads(line)
            event["seen"] = "bench"
            event["price"] = event.pop("amount")
            del event["pad"]
            out.append(orjson.dumps(event))
        yield pa.RecordBatch.from_arrays([pa.array(out, pa.binary())], names=["payload"])


def main(events: str, out: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shutil.rmtree(out, ignore_errors=True)
    spark.range(4).mapInArrow(lambda batches: batches, "id bigint").count()
    with measured(os.getppid()) as cost:
        frame = spark.read.text(events).mapInArrow(change, "payload binary")
        frame.write.option("compression", "lz4").parquet(out)
    rows = spark.read.parquet(out).count()
    print("bench " + json.dumps({"seconds": cost.seconds, "cpu": cost.cpu, "rows": rows}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
