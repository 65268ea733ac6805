"""Processors over DataFrames for `operate.walk`: the step of a run, over a few records, in a small Spark."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.record.record import Origin, Record

Numbered = tuple[int, int, Record]
"""A record with its numbers: (slice, n, record)."""

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
}
FEW = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for the few records of a test: by default each sort would be cut into 200 parts, and compiling each of the
queries that look for a record at fault takes longer than running them."""


def apply(
    processor: FrameProcessor, rows: Sequence[Numbered], origins: Sequence[Origin]
) -> tuple[list[Numbered], dict[tuple[int, int], str]]:
    """Returns the records that the processor makes, in order, and the (slice, n) that it fails on with their errors.

    Raises ConfigError if the statement is refused, or Spark cannot be started.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from conduit_tasks.micro_batch.frame_step import FrameStep
    from conduit_tasks.record.schema import SPOOL_SCHEMA, spool_batch, to_records

    batch = spool_batch([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
    spark = _session()
    with tempfile.TemporaryDirectory(prefix="conduit-frame-") as folder:
        # As in a run: a step reads the files that the step before it wrote.
        pq.write_table(pa.Table.from_batches([batch]), Path(folder) / "in.parquet")
        frame = spark.read.parquet(f"{folder}/in.parquet").select(*SPOOL_SCHEMA.names)
        culprits = FrameStep(processor, spark, frame, origins).write(f"{folder}/out")
        made: list[Numbered] = []
        for file in sorted(Path(folder, "out").glob("part-*.parquet")):
            for each in pq.ParquetFile(file).iter_batches(columns=SPOOL_SCHEMA.names):
                part = each.select(SPOOL_SCHEMA.names).cast(SPOOL_SCHEMA)
                made += zip(part.column("slice").to_pylist(), part.column("n").to_pylist(), to_records(part, origins))
    return made, culprits


def _session() -> Any:
    """Returns a new session over this process's Spark context, which is started if there is none and ends with the
    process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from conduit_tasks.spark.submit import LOG4J

    if SparkContext._active_spark_context is None:
        options = f"-Dlog4j2.configurationFile={LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = SparkSession.builder.master("local[1]").appName("conduit, a few records")
        for name, value in {**CONF, "spark.driver.extraJavaOptions": options}.items():
            builder = builder.config(name, value)
        try:
            # Failures are reported as nacks; Spark's own messages would bury the result.
            logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
            builder.getOrCreate().sparkContext.setLogLevel("OFF")
        except Exception as error:
            raise ConfigError(
                f"Spark cannot be started, which sql and python with mode: frame need: {error}"
            ) from error
    spark = SparkSession.builder.getOrCreate().newSession()
    for name, value in FEW.items():
        spark.conf.set(name, value)
    return spark
