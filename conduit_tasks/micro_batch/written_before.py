"""Rows that several tasks had written when one task took their micro-batch over: their marks are in the destination
(ADR 48)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit_tasks.connectors.rows import sealed_name
from conduit_tasks.delivery.chunks import NONE, Seqs
from conduit_tasks.delivery.shard import Shard
from conduit_tasks.micro_batch.numbering import once_by_shards

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.manifest import SealedManifest
    from conduit_tasks.topology import Destination


def written_before(
    context: Context,
    destination: Destination,
    connector: Any,
    manifest: SealedManifest,
    lease: Lease,
    *,
    rows: Callable[[Sequence[str]], Iterator[tuple[Seqs, pa.RecordBatch]]],
) -> Seqs:
    """Returns the seqs of the micro-batch behind the cursor that the destination has by the marks of the tasks that had
    begun it. These cannot write any more.

    `rows`: reads some columns of its rows, as sealed. Raises as `BatchDestination.left_by`.
    """
    division = context.broker.deliveries.get(destination.id).merged
    if division is None or division.micro_batch != manifest.micro_batch or not once_by_shards(destination, connector):
        return NONE
    shards = [Shard(division.by, division.count, n, manifest, division.shards) for n in division.shards]
    connector.still_ours = lease.renew
    lasts = connector.left_by([shard.name for shard in shards], sealed_name(manifest.token, manifest.micro_batch))
    found = [NONE]
    for shard, last in zip(shards, lasts):
        if last >= 0:
            for _ in shard.rows(rows(shard.columns)):
                pass
            seqs = shard.exactly(None)
            found.append(seqs[seqs <= last])
    return np.concatenate(found)
