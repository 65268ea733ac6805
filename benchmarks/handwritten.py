"""What an engineer writes by hand: one read, three JSON destinations. Prints seconds without the session's start.

`python -m benchmarks.handwritten batch|streaming EVENTS OUT [SLICES]`
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from pathlib import Path

SCHEMA = "id LONG, kind STRING, user STRING, amount DOUBLE, pad STRING"


def write_three(frame, out: str, mode: str) -> None:
    """All, filtered, one field added: from one persisted read."""
    from pyspark.sql import functions as f

    frame.persist()
    frame.write.mode(mode).json(f"{out}/all")
    frame.where("kind = 'buy'").write.mode(mode).json(f"{out}/filtered")
    frame.withColumn("seen", f.lit("bench")).write.mode(mode).json(f"{out}/added")
    frame.unpersist()


def main(kind: str, events: str, out: str, slices: int = 10) -> None:
    """Runs one kind and prints a JSON line: seconds, cpu (user + system, of this process tree after the start)."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    shutil.rmtree(out, ignore_errors=True)
    spark.range(10).count()
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before, started = _cpu(java), time.perf_counter()
    if kind == "batch":
        write_three(spark.read.schema(SCHEMA).json(events), f"{out}/data", "overwrite")
    else:
        source = f"{out}/in"
        _split(Path(events), Path(source), slices)
        before, started = _cpu(java), time.perf_counter()
        query = (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .json(source)
            .writeStream.foreachBatch(lambda frame, _: write_three(frame, f"{out}/data", "append"))
            .option("checkpointLocation", f"{out}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    seconds, cpu = time.perf_counter() - started, _cpu(java) - before
    print(json.dumps({"kind": kind, "seconds": round(seconds, 2), "cpu": round(cpu, 2)}))
    spark.stop()


def _cpu(java: int) -> float:
    fields = Path(f"/proc/{java}/stat").read_text().rsplit(")", 1)[1].split()
    own = resource.getrusage(resource.RUSAGE_SELF)
    return (int(fields[11]) + int(fields[12])) / 100 + own.ru_utime + own.ru_stime


def _split(events: Path, out: Path, pieces: int) -> None:
    out.mkdir(parents=True)
    lines = events.read_bytes().splitlines(keepends=True)
    step = -(-len(lines) // pieces)
    for i in range(pieces):
        (out / f"{i:03d}.json").write_bytes(b"".join(lines[i * step : (i + 1) * step]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *(int(a) for a in sys.argv[4:5]))
