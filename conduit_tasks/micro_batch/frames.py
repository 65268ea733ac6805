"""Sections with frame processors (`sql`, `python` over DataFrames): record-wise passes with Spark SQL in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain as chained
from typing import TYPE_CHECKING, Any

from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.frame_step import FrameStep, nacks
from conduit_tasks.micro_batch.pass_plan import BoundReader, Pass, PassResult
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.chain import segments
from conduit_tasks.record.accounts import accounted
from conduit_tasks.record.parquet import batches_of, opened
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import SPOOL_SCHEMA
from conduit_tasks.settings import settings
from conduit_tasks.spool.parts import ROW_GROUP

VECTOR = 4_096
"""Rows that Spark reads of a Parquet file at a time, unless they are large."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_tasks.micro_batch.pass_plan import Reader, RunAll
    from conduit_tasks.spool.spool import Spool


def run_frames(
    context: Context, plan: Pass, reader: Reader, pieces: Sequence[Any], run_all: RunAll
) -> list[PassResult]:
    """Runs the section's segments one after the other; each frame reads and writes separate files in the spool.

    The last pass is always a record-wise one (without processors, if need be): it evaluates the triggers and writes the
    files that count. Returns one result with the sums.
    """
    from conduit_tasks.spark.session import session

    spark = session()
    spool = context.spool
    steps = list(segments(plan.processors))
    if not steps or isinstance(steps[0], FrameProcessor):
        steps.insert(0, ())
    if isinstance(steps[-1], FrameProcessor):
        steps.append(())
    origins = reader.origins  # type: ignore[attr-defined]
    results: list[PassResult] = []
    failed: list[PassResult] = []
    made: list[PassResult] = []
    paths: list[str] = []
    framing = 0.0
    came = filtered = 0
    current: Reader = reader
    current_pieces = pieces
    for i, step in enumerate(steps):
        if isinstance(step, FrameProcessor):
            folder = spool.uri(spool.folder(plan.pipeline, plan.micro_batch, f"{plan.node}.frame{i}", plan.token))
            work = FrameStep(step, spark, _frame(spark, paths, made), origins)
            began = time.monotonic()
            if culprits := work.write(folder):
                failed.append(nacks(plan, spool, work, culprits, i))
                came -= len(culprits)
            framing += time.monotonic() - began
            current = FolderReader(origins)
            paths = spool.listing(folder)
            current_pieces = list(enumerate(paths))
        else:
            last = i == len(steps) - 1
            this = replace(
                plan, processors=tuple(step), final=plan.final and last, folder="" if last else f"{plan.node}.pass{i}"
            )
            made = run_all(BoundReader(this, spool, current), current_pieces)
            results.extend(made)
            paths = [spool.uri(f.path) for r in made for f in r.files]
            if i:
                filtered += _left_out(plan, came, sum(r.read for r in made))
            filtered += sum(r.filtered for r in made)
            came = sum(r.written for r in made)
    first, final = results[: len(pieces)], made
    return [_total(first, final, [*results, *failed], filtered, framing)]


def _total(
    first: Sequence[PassResult],
    final: Sequence[PassResult],
    every: Sequence[PassResult],
    filtered: int,
    framing: float,
) -> PassResult:
    """Returns the sums: what `first` read, what `final` wrote, what `every` pass nacked."""
    total = PassResult(
        files=list(chained.from_iterable(r.files for r in final)),
        nacked_files=list(chained.from_iterable(r.nacked_files for r in every)),
        read=sum(r.read for r in first),
        nacked=sum(r.nacked for r in every),
        written=sum(r.written for r in final),
        skipped=sum(r.skipped for r in first),
        filtered=filtered,
        bytes=sum(r.bytes for r in final),
    )
    total.seconds["process"] += framing  # type: ignore[assignment]  # seconds are no whole numbers
    for result in every:
        total.seconds.update(result.seconds)
    for result in final:
        total.matched.update(result.matched)
    for result in first:
        total.counts.update(result.counts)
        total.ends.update(result.ends)
    return total


def _frame(spark: SparkSession, paths: Sequence[str], made: Sequence[PassResult]) -> Any:
    """Returns what lies in the files. `made`: of the pass before."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if not paths:
        return spark.createDataFrame(SPOOL_SCHEMA.empty_table(), schema=from_arrow_schema(SPOOL_SCHEMA))
    _bound(spark, max((r.row_bytes for r in made), default=0))
    return spark.read.parquet(*paths).select(*SPOOL_SCHEMA.names)


def _left_out(plan: Pass, came: int, made: int) -> int:
    """Returns the number of records that statements filtered: a statement says what goes on, and nothing else. Raises
    InvariantBroken if more go on than came."""
    if made > came:
        accounted(plan.node, plan.micro_batch, came, made=made)
    return came - made


def _bound(spark: SparkSession, row_bytes: int) -> None:
    """Limits the rows that Spark reads and hands on at a time to CONDUIT_BATCH_BYTES bytes: by itself it counts rows,
    4,096 of a Parquet file, and cannot hold more than 2 GiB of a column."""
    limit = settings().batch_bytes
    rows = max(1, min(VECTOR, limit // max(row_bytes, 1)))
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", rows)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows if rows < VECTOR else 10_000)
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", limit)


@dataclass(frozen=True)
class FolderReader:
    """Reads a Parquet file that a frame wrote; picklable. A piece is (number, URI)."""

    origins: Sequence[Origin]

    def __call__(self, plan: Pass, spool: Spool, piece: tuple[int, str]) -> PassResult:
        number, uri = piece
        with spool.open(uri) as file:
            batches = batches_of(opened(file), settings().batch_bytes, ROW_GROUP, columns=SPOOL_SCHEMA.names)
            return RowPass(plan, spool, number, self.origins).run(
                b.select(SPOOL_SCHEMA.names).cast(SPOOL_SCHEMA) for b in batches
            )
