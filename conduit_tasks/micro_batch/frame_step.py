"""One frame processor at work: its condition, and the records that it cannot take (SEMANTICS C2, C4).

An error inside a statement would fail the whole micro-batch. The record at fault is found by halving, without writing
anything, and nacked alone; the statement then runs over the rest. Errors with other causes (a lost worker, a full disk)
still fail the attempt: a record is at fault only if the statement fails on it alone, twice, and does not fail on no
record at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from conduit_tasks.connectors.outcome import clip
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.pass_plan import NACKED_SCHEMA, Pass, PassResult
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.result import NACKED
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.spark import session
from conduit_tasks.templates import template

if TYPE_CHECKING:
    from conduit_tasks.spool.spool import Spool

MOST = 100
"""Limit of records at fault that are looked for; each costs a Spark job per halving."""

Key = tuple[int, int]
"""(slice, n) of a record."""


@dataclass
class FrameStep:
    """A frame processor over the frame of one micro-batch."""

    processor: FrameProcessor
    spark: Any
    frame: Any
    origins: Sequence[Origin]

    def write(self, uri: str) -> dict[Key, str]:
        """Writes the result as Parquet; returns the records at fault, which are not in it, and their errors.

        Raises ConfigError if the statement is refused, and errors with other causes as they are.
        """
        try:
            self._write(self.frame, uri)
        except ConfigError:
            raise
        except Exception as error:
            if lost := session.lost(error):
                raise lost from error
            culprits = self._culprits()
            if not culprits:
                raise
            self._write(_without(self.frame, culprits), uri)
            return culprits
        return {}

    def _write(self, frame: Any, uri: str) -> None:
        self._applied(frame).write.mode("overwrite").parquet(uri)

    def _applied(self, frame: Any) -> Any:
        condition = self.processor.condition
        if not condition:
            return self.processor.apply(self.spark, frame)
        wanted = frame.mapInArrow(_Chosen(condition, self.origins, True), frame.schema)
        others = frame.mapInArrow(_Chosen(condition, self.origins, False), frame.schema)
        return self.processor.apply(self.spark, wanted).unionByName(others).orderBy("slice", "n", "ord")

    def _culprits(self) -> dict[Key, str]:
        keys = sorted({(row[0], row[1]) for row in self.frame.select("slice", "n").distinct().collect()})
        if self._error(self.frame.limit(0)) is not None:
            return {}
        found: dict[Key, str] = {}
        # All of them together have just failed: halves are next.
        middle = len(keys) // 2
        todo = [(middle, len(keys)), (0, middle)]
        while todo:
            first, end = todo.pop()
            if first == end or self._error(_between(self.frame, keys[first], keys[end - 1])) is None:
                continue
            if end - first > 1:
                middle = (first + end) // 2
                todo += [(middle, end), (first, middle)]
                continue
            # Tried a second time: a worker may also die through the fault of others.
            again = self._error(_between(self.frame, keys[first], keys[first]))
            if again is not None:
                found[keys[first]] = again
            if len(found) > MOST:
                return {}
        return found

    def _error(self, frame: Any) -> str | None:
        """Returns the statement's error for these records, in one line; None if it takes them."""
        from pyspark.sql import functions as f

        try:
            # Evaluates every column of every row, and returns only a number; Spark leaves out the unneeded sort.
            self._applied(frame).agg(f.max(f.length(f.to_json(f.struct(*SPOOL_SCHEMA.names))))).collect()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, or raised by the whole statement
            return clip(_cause(error))
        return None


def nacks(plan: Pass, spool: Spool, step: FrameStep, culprits: dict[Key, str], number: int) -> PassResult:
    """Writes the records at fault as they came to the processor, durably and with their errors; one is in memory at a
    time."""
    node = f"{plan.node}/{step.processor.id}" if step.processor.id else plan.node
    writer = spool.writer(plan.pipeline, plan.micro_batch, f"{plan.node}.nacked{number}", plan.token)
    part = writer.nacked(0, NACKED_SCHEMA)
    try:
        for key, message in culprits.items():
            rows = step.frame.filter(_is(key)).toArrow().select(SPOOL_SCHEMA.names).cast(SPOOL_SCHEMA)
            error = orjson.dumps({"node": node, "class": NACKED, "message": message})
            errors = pa.array([error] * rows.num_rows, pa.binary())
            for batch in rows.append_column("error", errors).select(NACKED_SCHEMA.names).to_batches():
                part.write(batch)
    except BaseException:
        part.abort()
        raise
    return PassResult(nacked_files=[part.close()], nacked=len(culprits))


@dataclass(frozen=True)
class _Chosen:
    """Filter for rows whose record fulfils the condition, or (`wanted` False) does not; picklable, for executors."""

    condition: str
    origins: Sequence[Origin]
    wanted: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        holds = template.compile(self.condition).condition
        for batch in batches:
            records = to_records(batch.select(SPOOL_SCHEMA.names).cast(SPOOL_SCHEMA), self.origins)
            yield batch.filter(pa.array([holds(record) == self.wanted for record in records], pa.bool_()))


def _between(frame: Any, first: Key, last: Key) -> Any:
    """Returns the rows of the records from `first` to `last`, both included."""
    return frame.filter(
        f"(slice > {first[0]} OR (slice = {first[0]} AND n >= {first[1]})) AND "
        f"(slice < {last[0]} OR (slice = {last[0]} AND n <= {last[1]}))"
    )


def _is(key: Key) -> str:
    return f"slice = {key[0]} AND n = {key[1]}"


def _without(frame: Any, culprits: dict[Key, str]) -> Any:
    return frame.filter(" AND ".join(f"NOT ({_is(key)})" for key in culprits))


def _cause(error: BaseException) -> str:
    """Returns the line that says what is wrong, without Spark's account of the place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A Python worker's traceback ends with the error itself; Spark's own errors begin with it.
    own = [line for line in lines if line.startswith("[") and "]" in line and "STAGE" not in line]
    traced = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    if traced:
        following = [line for line in lines[traced[-1] + 1 :] if not line.startswith(("File ", "at ", "^", "~"))]
        named = [line for line in following if ":" in line and " " not in line.partition(":")[0]]
        if named:
            return named[0]
    return own[0] if own else (lines[0] if lines else type(error).__name__)
