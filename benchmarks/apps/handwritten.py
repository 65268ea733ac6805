"""What an engineer writes by hand: one read, three JSON destinations, no state of any kind.

`handwritten.py batch|streaming EVENTS OUT [SLICES]`: one batch job, or Structured Streaming's `foreachBatch` over as
many micro-batches as slices. Prints `bench {json}`: seconds and CPU without the session's start.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import measured

SCHEMA = "id LONG, kind STRING, user STRING, amount DOUBLE, pad STRING"


def write_three(frame: Any, out: str, mode: str) -> None:
    """All, filtered, one field added: from one persisted read."""
    from pyspark.sql import functions as f

    frame.persist()
    frame.write.mode(mode).json(f"{out}/all")
    frame.where("kind = 'buy'").write.mode(mode).json(f"{out}/filtered")
    frame.withColumn("seen", f.lit("bench")).write.mode(mode).json(f"{out}/added")
    frame.unpersist()


def batch(spark: Any, events: str, out: str) -> None:
    write_three(spark.read.schema(SCHEMA).json(events), f"{out}/data", "overwrite")


def streaming(spark: Any, pieces: str, out: str) -> None:
    """One micro-batch per file in `pieces`, with a checkpoint."""
    query = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(pieces)
        .writeStream.foreachBatch(lambda frame, _: write_three(frame, f"{out}/data", "append"))
        .option("checkpointLocation", f"{out}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(kind: str, events: str, out: str, slices: int = 10) -> None:
    """Runs one kind."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shutil.rmtree(out, ignore_errors=True)
    if kind == "streaming":
        _split(Path(events), Path(out) / "in", slices)
    spark.range(10).count()
    with measured(os.getppid()) as cost:
        if kind == "batch":
            batch(spark, events, out)
        else:
            streaming(spark, f"{out}/in", out)
    print("bench " + json.dumps({"seconds": cost.seconds, "cpu": cost.cpu}), flush=True)
    spark.stop()


def _split(events: Path, out: Path, pieces: int) -> None:
    out.mkdir(parents=True)
    lines = events.read_bytes().splitlines(keepends=True)
    step = -(-len(lines) // pieces)
    for i in range(pieces):
        (out / f"{i:03d}.json").write_bytes(b"".join(lines[i * step : (i + 1) * step]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *(int(a) for a in sys.argv[4:5]))
