"""Writer of a frame to a destination, without a pipeline: at least once, with ids of its records, attempts of each, and
which destinations one task has to write (docs/spark.md)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.datasource import WriterCommitMessage as Message

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import BatchDestination, RecordDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused, Unavailable
from conduit_tasks.settings import Settings
from conduit_tasks.spark.frame_records import records_of
from conduit_tasks.topology import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.record.record import Record

SENDS = Delivery(retry=4, backoff_delay=0.2, timeout=30.0)
"""Delivery settings: five attempts per record, then the task fails."""
AT_ONCE = 64
"""Sends per task that are under way at once."""


@dataclass
class RecordWriter(DataSourceArrowWriter):
    """Writer of one task's rows; `records_of` makes records of them."""

    connector: str
    options: dict[str, str]
    home: Settings
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    """Id of one write, the same in every attempt of its tasks: a part of the records' ids."""

    def __post_init__(self) -> None:
        registry.destination_class(self.connector)(self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        from pyspark import TaskContext

        self.home.use()
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        batches = self._records(iterator, partition)
        first = next(batches, None)
        if first is None:
            return Message()
        batches = chain([first], batches)
        destination = registry.destination_class(self.connector)(self.options)
        if isinstance(destination, RecordDestination):
            asyncio.run(_send_all(destination, batches))
            return Message()
        goes_back = destination.effectively_once and not destination.keeps_index
        if partition and goes_back and not destination.idempotent(self.options):
            # The destination goes back to its state: a second writer would cut off the first one's output.
            raise ConfigError(f"conduit_{self.connector} is written by one task: use frame.coalesce(1)")
        _write_all(destination, batches)
        return Message()

    def _records(self, batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[list[Record]]:
        """Yields the records in order, of at most a batch or CONDUIT_BATCH_BYTES bytes at a time: Spark counts the rows
        of a batch. Rows without a position get a number as their position."""
        from conduit_tasks.record.batches import cut_by
        from conduit_tasks.record.parquet import row_sizes

        n, limit = 0, self.home.batch_bytes
        for batch in batches:
            for part in cut_by(batch, row_sizes(batch), limit):
                records = records_of(part, self.run)
                for record in records:
                    record.position = record.position or f"{partition}.{n}".encode()
                    n += 1
                if records:
                    yield records


async def _send_all(destination: RecordDestination, batches: Iterator[list[Record]]) -> None:
    from conduit_tasks.delivery.retry import RetryPolicy
    from conduit_tasks.delivery.single import send

    policy = RetryPolicy(SENDS)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(record: Record) -> None:
        async with room:
            outcome, attempts = await send(destination, record, policy, SENDS.timeout)
        if outcome.kind != "delivered":
            kind = Refused if outcome.kind == "refused" else Unavailable
            raise kind(f"{record.position!r} was {outcome.kind} in {attempts} attempt(s): {outcome.message}")

    await destination.open(SENDS.timeout)
    try:
        for records in batches:
            async with asyncio.TaskGroup() as group:
                for record in records:
                    group.create_task(one(record))
    except* (Refused, Unavailable) as several:
        raise several.exceptions[0] from None
    finally:
        await destination.close()


def _write_all(destination: BatchDestination, batches: Iterator[list[Record]]) -> None:
    from conduit_tasks.record.schema import spool_batch

    first, state = 0, None
    destination.open(None)
    try:
        for records in batches:
            for at in range(0, len(records), destination.chunk):
                part = records[at : at + destination.chunk]
                seqs = range(first, first + len(part))
                rows = Rows(
                    spool_batch([0] * len(part), seqs, part), [part[0].origin], first=first, last=first + len(part) - 1
                )
                state = destination.write(rows)
                first += len(part)
        if first:
            # As the engine does once the state is confirmed: from now on the output is not cut back.
            destination.open(state)
    finally:
        destination.close()
