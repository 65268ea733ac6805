"""Numbering of deliveries: which number their records, and from where (SEMANTICS O5–O6r, B8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from conduit_tasks.broker.sending import Numbered
from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.delivery.lanes import KEY_LANES
from conduit_tasks.delivery.numbering import (
    LaneNumbers,
    LaneOf,
    Numbering,
    RowNumbering,
    SeqNumbering,
    ShardNumbering,
    count_lanes,
)
from conduit_tasks.spool.names import known_as
from conduit_tasks.topology import INDEX_PIPES, Destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.record.record import Origin
    from conduit_tasks.spool.manifest import SealedManifest


def numbering_of(
    context: Context,
    destination: Destination,
    connector: Any,
    manifest: SealedManifest,
    *,
    origins: Sequence[Origin],
    token: int,
    epoch: int = 0,
) -> Numbering | None:
    """Returns the numbers of a micro-batch's records at a destination, stored; None if neither pipe nor guarantee wants
    them. `token`: of the lease; `epoch`: above 0 for a redelivery. Raises Fenced, PipelineStopped."""
    if not _wanted(destination, connector):
        return None

    def number(known: int, counts: Any) -> Any:
        of = {"seal": manifest.token, "counts": counts, "known": known, "stream": epoch}
        return context.broker.sending.number(destination.id, manifest.micro_batch, token, **of)

    if isinstance(connector, BatchDestination):
        numbered = number(1, lambda: {"": matched_of(context, manifest, destination)})
        return RowNumbering(numbered, context.pipeline.id, destination.id)
    lanes = LaneOf(destination.delivery.order_by, origins)
    known = KEY_LANES if lanes.by_key else context.broker.positions.partitions()
    numbered = number(known, lambda: count_lanes(lane_columns(context, manifest, destination, lanes), lanes))
    return LaneNumbers(numbered, lanes, destination.node)


def shard_numbering(
    pipeline: str, destination: Destination, connector: Any, manifest: SealedManifest
) -> Numbering | None:
    """Returns the numbers of the records of a shard of a micro-batch; None if the guarantee wants none."""
    if not once_by_shards(destination, connector):
        return None
    return ShardNumbering(manifest.token, pipeline, destination.id)


def once_by_shards(destination: Destination, connector: Any) -> bool:
    """Returns whether effectively-once is asked for, and each of several tasks gives it. `connector`: class or object
    of the destination."""
    return destination.delivery.guarantee == "effectively-once" and bool(connector.once_by_shards)


def new_numbering(
    pipeline: str, destination: Destination, connector: Any, origins: Sequence[Origin], epoch: int
) -> Numbering | None:
    """Returns separate numbers, from 1, for records that are sent again in this epoch. The epoch belongs to no other
    numbers, like the token of a lease (it is a time in microseconds, as tokens are)."""
    if not _wanted(destination, connector):
        return None
    if isinstance(connector, BatchDestination):
        return RowNumbering(Numbered(epoch, {}), pipeline, destination.id)
    return LaneNumbers(Numbered(epoch, {}), LaneOf(destination.delivery.order_by, origins), destination.node)


def numbering_again(
    pipeline: str,
    destination: Destination,
    connector: Any,
    origins: Sequence[Origin],
    *,
    epoch: int,
    seqs: Sequence[int],
) -> Numbering | None:
    """Returns numbers as `new_numbering` does, but the same ones at every attempt, though each attempt chooses which
    rows to send: a row's number is its place among all rows. `seqs`: those of the chosen rows, ascending; lane numbers
    watch all rows."""
    numbering = new_numbering(pipeline, destination, connector, origins, epoch)
    if isinstance(numbering, RowNumbering):
        return SeqNumbering(epoch, pipeline, destination.id, seqs)
    return numbering


def _wanted(destination: Destination, connector: Any) -> bool:
    delivery = destination.delivery
    wanted = delivery.pipe in INDEX_PIPES
    if isinstance(connector, BatchDestination):
        return bool(connector.keeps_index) and (wanted or delivery.guarantee != "at-least-once")
    return wanted


def lane_columns(
    context: Context, manifest: SealedManifest, destination: Destination, lanes: LaneOf
) -> Iterator[pa.RecordBatch]:
    """Yields the columns that give the lane of each row that the destination's trigger matched."""
    wanted = column_of(context, manifest, destination)
    for file in manifest.files:
        row_filter = wanted if wanted in context.spool.columns(file) else None
        yield from context.spool.read(file, columns=lanes.columns, row_filter=row_filter)


def matched_of(context: Context, manifest: SealedManifest, destination: Destination) -> int:
    """Returns the number of records of a sealed micro-batch that this destination's trigger matched."""
    return manifest.matched[known_as(context.spool, context.pipeline.id, destination.id, manifest.matched)]


def column_of(context: Context, manifest: SealedManifest, destination: Destination) -> str:
    """Returns the column of the spool that marks those records; a renamed destination has its earlier id there."""
    return f"to.{known_as(context.spool, context.pipeline.id, destination.id, manifest.matched)}"
