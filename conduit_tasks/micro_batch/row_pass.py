"""One pass over rows in an executor: number, process, evaluate the triggers, write the spool file and the rows that
failed.

Called by the read and the process step for each of their pieces; only counts go back to the driver.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from conduit_tasks.connectors.portion import Portion
from conduit_tasks.delivery.isolated import bisected
from conduit_tasks.errors import Oversize, Unwritable
from conduit_tasks.filters import compile_filters
from conduit_tasks.filters.batch import mask
from conduit_tasks.micro_batch.account import Account
from conduit_tasks.micro_batch.fates import error_of, fates_of
from conduit_tasks.micro_batch.malformed import decode_error, malformed, undecodable
from conduit_tasks.micro_batch.pass_plan import NACKED_SCHEMA, Pass, PassResult
from conduit_tasks.micro_batch.row_batches import bounded, in_blocks, records_of, row_keys, unparted
from conduit_tasks.micro_batch.row_index import RowIndex
from conduit_tasks.processors import columns
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.columns import BLOCK
from conduit_tasks.processors.derived import in_parts, too_much
from conduit_tasks.processors.result import Result
from conduit_tasks.record import jsons
from conduit_tasks.record.batches import cut, gathered, joined
from conduit_tasks.record.collector import seldom_collecting
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import spool_batch, to_records
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    from conduit_tasks.spool.spool import Spool


class RowPass:
    """Runs a `Pass` over batches of one piece and writes its part files."""

    def __init__(self, plan: Pass, spool: Spool, part: int, origins: Sequence[Origin]) -> None:
        self.plan, self.origins, self.part = plan, origins, part
        self.chain = Chain(plan.processors) if plan.processors else None
        self.filters = [(d.id, compile_filters(d.filters)) for d in plan.filtered_destinations()]
        self.writer = spool.writer(plan.pipeline, plan.micro_batch, plan.folder or plan.node, plan.token)
        self.result = PassResult()
        self._account = Account(plan.node, plan.micro_batch)
        self._limit = settings().batch_bytes
        self._portion = Portion(BLOCK, max(1, self._limit // 2))
        self._out: Any = None
        self._index = RowIndex(plan, spool, origins) if plan.final and plan.index else None
        self._nacked: Any = None
        self._since = time.monotonic()

    def run(self, batches: Iterable[pa.RecordBatch]) -> PassResult:
        """Consumes SPOOL_SCHEMA batches in order; every file is durable when it returns.

        Raises InvariantBroken if a row that came is not accounted for.
        """
        try:
            with seldom_collecting():
                for batch in unparted(bounded(self._coming(batches), self._limit)):
                    self._took("read")
                    self._take(batch)
                self._took("read")
        except BaseException:
            for writer in (self._out, self._nacked, self._index):
                if writer is not None:
                    writer.abort()
            raise
        finally:
            if self.chain is not None:
                self.chain.close()
        for writer, files in ((self._out, self.result.files), (self._nacked, self.result.nacked_files)):
            if writer is not None:
                files.append(writer.close())
        if self._index is not None:
            self._index.close()
        stored, nacked = (sum(f.rows for f in files) for files in (self.result.files, self.result.nacked_files))
        self._account.close(stored, nacked)
        self._took("spool")
        self.result.bytes = sum(f.bytes for f in self.result.files)
        return self.result

    def _coming(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._account.came += batch.num_rows
            yield batch

    def _took(self, what: str) -> None:
        """Adds the time since the last call to the seconds of `what`."""
        now = time.monotonic()
        self.result.seconds[what] += now - self._since  # type: ignore[assignment]  # seconds are no whole numbers
        self._since = now

    def _take(self, batch: pa.RecordBatch) -> None:
        result = self.result
        result.read += len(records_of(batch))
        self._account.taken += batch.num_rows
        self._pass_on(batch)
        self._account.check(result.read, written=result.written, filtered=result.filtered, nacked=result.nacked)

    def _pass_on(self, batch: pa.RecordBatch) -> None:
        failed = undecodable(batch)
        if failed is not None:
            bad = batch.filter(failed)
            self._nack(bad, [decode_error(self.plan.node, row) for row in bad.column("metadata").to_pylist()])
            batch = batch.filter(pa.compute.invert(failed))
        batch = self._sound(batch)
        if self.chain is None or not batch.num_rows:
            self._account.went_on += batch.num_rows
            self._account.made += batch.num_rows
            self._write(batch)
            return
        # A row group per batch that came in, but no more than may be held: derived records can be many.
        for parts in gathered(self._process(self.chain, batch), sys.maxsize, self._limit):
            self._write(joined(parts))

    def _sound(self, batch: pa.RecordBatch, *, small: bool = False) -> pa.RecordBatch:
        """Returns the rows that may be records and nacks the others; data nested too deeply is nacked as raw bytes.
        `small`: checks only the size, of rows that were made."""
        shape, found = malformed(batch, small=small)
        if not found:
            return batch
        keys = row_keys(batch)
        why = {int(keys[row]): each for row, each in found.items()}
        bad = np.isin(keys, list(why))
        at = batch.schema.get_field_index("shape")
        rows = batch.set_column(at, batch.schema.field(at), pa.array(shape)).filter(pa.array(bad))
        positions = [position.decode(errors="replace") for position in rows.column("position").to_pylist()]
        errors = [
            {"node": self.plan.node, "class": Unwritable.error_class, "message": f"{position}: {why[key]}"}
            for position, key in zip(positions, keys[bad].tolist(), strict=True)
        ]
        self._nack(rows, errors, made=small)
        return batch.filter(pa.array(~bad))

    def _process(self, chain: Chain, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Runs the chain over one batch; nacks what failed as it came in."""
        for part in unparted(cut(batch, max(1, self._limit // 2))):
            if chain.columnar and not self.plan.isolate_poison:
                for start, end, passed in columns.parts(chain, part, self.origins, row_keys(part), self._limit):
                    yield self._process_columns(part.slice(start, end - start), passed)
                    self._took("process")
            else:
                nacked: list[pa.RecordBatch] = []
                errors: list[dict[str, str]] = []
                for block in in_blocks(part, partial(self._block_rows, part.num_rows)):
                    size = 0
                    for made in self._process_block(block, nacked, errors):
                        size += made.nbytes
                        yield made
                    self._portion.came(block.num_rows, size)
                    self._took("process")
                if nacked:
                    self._nack(joined(nacked), errors)

    def _block_rows(self, rows: int) -> int:
        """Returns how many of these rows become records at a time; how large processors make them shows afterwards."""
        assert self.chain is not None
        if self.plan.isolate_poison:
            return rows
        return BLOCK if self.chain.many else self._portion.size

    def _process_columns(self, batch: pa.RecordBatch, passed: columns.Passed) -> pa.RecordBatch:
        keys = row_keys(batch)
        failed = np.zeros(batch.num_rows, bool)
        if passed.errors:
            # Derived records are acked or nacked together: they share the position.
            culprits = {int(keys[row]): result for row, result in passed.errors.items()}
            failed = np.isin(keys, list(culprits))
            self._nack(
                batch.filter(pa.array(failed)),
                [error_of(self.plan.node, culprits[key]) for key in keys[failed].tolist()],
            )
            passed = passed.without(failed)
        on, filtered = passed.fates(batch.num_rows)
        self.result.filtered += self._account.processed(keys, on, filtered & ~failed, passed.batch.num_rows)
        # Ordinals are dense over all derived records of one position, whichever node derived them.
        return columns.renumbered(passed.batch, columns.places(keys[passed.rows]))

    def _process_block(
        self, batch: pa.RecordBatch, nacked: list[pa.RecordBatch], errors: list[dict[str, str]]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that some whole records become; adds rows that failed to `nacked`, and why to `errors`."""
        start = 0
        for results in self._results(batch):
            rows = batch.slice(start, len(results))
            start += len(results)
            yield from self._pieces(rows, results, nacked, errors)

    def _pieces(
        self,
        batch: pa.RecordBatch,
        results: Sequence[Result],
        nacked: list[pa.RecordBatch],
        errors: list[dict[str, str]],
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that the chain made: at once, or in halves if an array cannot hold them."""
        assert self.chain is not None
        try:
            try:
                made = self._made(batch, results, nacked, errors)
            except Unwritable:
                results = [self.chain.writable(result) for result in results]
                made = self._made(batch, results, nacked, errors)
        except Oversize:
            cut = columns.middle(row_keys(batch), 0, batch.num_rows)
            if cut is None:
                failure = self.chain.unwritable(str(too_much()))
                yield self._made(batch, [failure] * batch.num_rows, nacked, errors)
                return
            yield from self._pieces(batch.slice(0, cut), results[:cut], nacked, errors)
            yield from self._pieces(batch.slice(cut), results[cut:], nacked, errors)
        else:
            yield made

    def _made(
        self,
        batch: pa.RecordBatch,
        results: Sequence[Result],
        nacked: list[pa.RecordBatch],
        errors: list[dict[str, str]],
    ) -> pa.RecordBatch:
        """Returns the rows that the chain made. Raises Unwritable and Oversize before it adds anything to `nacked`,
        `errors` and the account."""
        of = row_keys(batch)
        fates = fates_of(of, results)
        slices, numbers = (batch.column(name).to_numpy()[fates.kept] for name in ("slice", "n"))
        made = spool_batch(slices, numbers, fates.records)
        on, gone = np.zeros(len(of), bool), np.zeros(len(of), bool)
        on[fates.kept] = gone[fates.filtered] = True
        self.result.filtered += self._account.processed(of, on, gone, made.num_rows)
        if fates.failed:
            nacked.append(batch.take(pa.array(list(fates.failed))))
            errors.extend(error_of(self.plan.node, result) for result in fates.failed.values())
        return made

    def _results(self, batch: pa.RecordBatch) -> Iterator[list[Result]]:
        """Yields the results of rows in order, whole records: of all at once, unless they become too many."""
        assert self.chain is not None
        if not self.plan.isolate_poison:
            yield from in_parts(self.chain, to_records(batch, self.origins), row_keys(batch), self._limit)
            return
        yield bisected(
            self.chain.run,
            to_records(batch, self.origins),
            lambda _, how: Result.failure(f"killed its worker: {how}", "killed its worker"),
        )

    def _write(self, batch: pa.RecordBatch) -> None:
        if self.chain is not None:
            batch = self._sound(batch, small=True)
        if not batch.num_rows:
            return
        distinct = len(records_of(batch))
        self.result.written += distinct
        self._account.written += batch.num_rows
        if self.plan.final:
            keys = None
            for destination, matcher in self.filters:
                column = mask(matcher, batch, self.origins)
                wanted = np.ones(batch.num_rows, bool) if column is None else column
                batch = batch.append_column(f"to.{destination}", pa.array(wanted))
                keys = row_keys(batch) if keys is None else keys
                self.result.matched[destination] += len(np.unique(keys[wanted])) if wanted.any() else 0
            for destination in (d.id for d in self.plan.destinations if not d.filters):
                self.result.matched[destination] += distinct
        if self._out is None:
            self._out = self.writer.part(self.part, [d for d, _ in self.filters])
        self.result.row_bytes = max(self.result.row_bytes, batch.nbytes // batch.num_rows)
        self._out.write(batch)
        if self._index is not None:
            self._index.add(batch, self._out.path)
        self._took("spool")

    def _nack(self, rows: pa.RecordBatch, errors: Sequence[Mapping[str, str]], *, made: bool = False) -> None:
        """Stores rows that failed: as they came in, or as they were made."""
        self.result.nacked += len(records_of(rows))
        if made:
            self._account.too_large += rows.num_rows
        else:
            self._account.nacked += rows.num_rows
        if self._nacked is None:
            self._nacked = self.writer.nacked(self.part, NACKED_SCHEMA)
        cells = [rows.column(name) for name in NACKED_SCHEMA.names[:-1]]
        cells.append(pa.array([orjson.dumps({k: jsons.clean(v) for k, v in e.items()}) for e in errors], pa.binary()))
        self._nacked.write(pa.RecordBatch.from_arrays(cells, schema=NACKED_SCHEMA))
