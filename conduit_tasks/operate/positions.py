"""Positions of a pipeline's sources: looking at them, and setting them while it is stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.forgotten import lost, remember

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position


def positions(pipeline_id: str) -> list[dict[str, Any]]:
    """Returns, per source, its `id`, `planned` and `acked`: part → token. Raises StateLost."""
    with opened(pipeline_id, "status") as context:
        if error := lost(context):
            raise error
        broker = context.broker
        return [
            {"id": s.id, "planned": broker.positions.planned(s.id), "acked": broker.positions.acked(s.id)}
            for s in context.pipeline.sources
        ]


def place(
    pipeline_id: str, source: str, tokens: Mapping[str, Any], forget: Collection[str] = (), *, dry_run: bool = False
) -> tuple[Position, Position]:
    """Sets the planned tokens of some parts of a source, and lets it forget others, which then begin as new ones do.

    Records past the new position are read and delivered again, with the ids they had (T8); records that are jumped over
    are never read. An unsealed micro-batch is planned again, from that position. The acked position stays: it is what
    the source was told. Returns the position before and after.

    Raises NotStopped if the pipeline works or something of it is in flight, ConfigError if there is no such source or
    part, or a token is of another kind than the part's, StateLost if Redis knows nothing of the pipeline. If it has
    forgotten something, its state is brought back from the spool first.
    """
    with opened(pipeline_id, "positions") as context:
        _check(context, source)
        if dry_run and (error := lost(context)):
            raise error
        if not dry_run:
            remember(context)
        broker = context.broker
        before = broker.positions.before_unsealed(source)
        for part in [*tokens, *forget]:
            if before and part not in before:
                raise ConfigError(f"source {source} has no part '{part}'; it has {_some(before)}")
        for part, token in tokens.items():
            if before.get(part) is not None and type(token) is not type(before[part]):
                raise ConfigError(
                    f"source {source}: '{token}' cannot be the position of {part}, which is {before[part]!r} now; "
                    "write one of that kind"
                )
        after = {part: token for part, token in {**before, **tokens}.items() if part not in forget}
        if not dry_run:
            if broker.lifecycle.stored_status() in ("stopped", "degraded"):
                # What a forceful stop, or a slice that cannot be read any more, left open is planned again.
                broker.micro_batches.undo_unsealed()
            broker.positions.place(source, before, after)
        return before, after


def _check(context: Context, source: str) -> None:
    from conduit_tasks.connectors.capabilities import Queue
    from conduit_tasks.connectors.registry import source_class

    found = {s.id: s for s in context.pipeline.sources}
    if source not in found:
        raise ConfigError(f"pipeline {context.pipeline.id} has no source {source}; it has {', '.join(found)}")
    if issubclass(source_class(found[source].plugin), Queue):
        raise ConfigError(f"source {source} is a queue: what was taken from it is deleted, its position is not yours")


def _some(position: Mapping[str, Any], most: int = 5) -> str:
    names = list(position)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
