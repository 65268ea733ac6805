"""Work whose records carry metadata, for processors to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from conduit_tasks.delivery.work import Work
from conduit_tasks.processors.chain import Chain


def with_metadata(work: Work, of: Callable[[int], dict[str, str]], chain: Chain) -> Work:
    """The same work, through `chain`, with `of(seq)` as each record's own metadata."""

    def rows() -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        for seqs, batch in work.rows():
            field = batch.schema.field("metadata")
            column = pa.array([list(of(int(seq)).items()) for seq in seqs], field.type)
            at = batch.schema.get_field_index("metadata")
            yield seqs, batch.set_column(at, field, column)

    return replace(work, rows=rows, chain=chain)
