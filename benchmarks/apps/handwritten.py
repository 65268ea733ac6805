"""What an engineer writes by hand: one read, three JSON destinations, no state of any kind.

`handwritten.py EVENTS OUT SLICES KIND …`: `batch` is one batch job, `streaming` Structured Streaming's `foreachBatch`
over as many micro-batches as slices. Prints `bench {json}`: seconds and CPU of each, without the session's start.
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


def main(events: str, out: str, slices: int, *kinds: str) -> None:
    """Runs each kind."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    said = {kind: once(spark, kind, events, f"{out}/{kind}", slices) for kind in kinds}
    print("bench " + json.dumps(said), flush=True)
    spark.stop()


def once(spark: Any, kind: str, events: str, out: str, slices: int) -> dict[str, float]:
    """Runs one kind, and returns what it cost."""
    shutil.rmtree(out, ignore_errors=True)
    if kind == "streaming":
        _split(Path(events), Path(out) / "in", slices)
    spark.range(10).count()
    with measured(os.getppid()) as cost:
        if kind == "batch":
            batch(spark, events, out)
        else:
            streaming(spark, f"{out}/in", out)
    return {"seconds": cost.seconds, "cpu": cost.cpu}


def _split(events: Path, out: Path, pieces: int) -> None:
    out.mkdir(parents=True)
    lines = events.read_bytes().splitlines(keepends=True)
    step = -(-len(lines) // pieces)
    for i in range(pieces):
        (out / f"{i:03d}.json").write_bytes(b"".join(lines[i * step : (i + 1) * step]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
