"""Data that was planned and is removed, replaced or shortened when it is read: an error with the commands to go on, or
passed over and counted (`missing: skip`).

By default that is an error, which names what to do; with `missing: skip` it is passed over, logged and counted.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from conduit_tasks.connectors.base import Option, Slice, Source
from conduit_tasks.errors import Missing

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

OPTION = Option(
    "missing",
    "what was planned and is removed, replaced or shortened before it is read: fail, or skip it, logged and counted",
    default="fail",
    choices=("fail", "skip"),
)


def tolerated(source: Source, slice: Slice, batches: Iterable[pa.RecordBatch], once: str) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a slice, as far as they can be read. If the rest is missing, raises Missing, with the ways
    out (`once`: see `ways_out`); with `missing: skip` it counts the rest as passed over."""
    read = 0
    try:
        for batch in batches:
            read += batch.num_rows
            yield batch
    except Missing as error:
        if source.settings["missing"] != "skip":
            raise Missing(f"{error}. {ways_out(source, once)}") from error.__cause__
        lost = "an unknown number of records" if slice.records is None else f"{slice.records - read:,} records"
        log.warning("%s: %s; %s are passed over (missing: skip)", source.connector, error, lost)
        source.skipped += 1


def beyond(source: Source, slice: Slice) -> str:
    """Returns the commands with which the source goes on behind a slice."""
    return _placed(source, f"--set {shlex.quote(f'{slice.part}={json.dumps(slice.end)}')}")


def forgotten(source: Source, part: str) -> str:
    """Returns the commands with which a part begins as a new one, or not at all if it is gone."""
    return _placed(source, f"--forget {shlex.quote(part)}")


def _placed(source: Source, place: str) -> str:
    pipeline, connector = source.pipeline or "PIPELINE", source.connector or "SOURCE"
    return (
        f"`conduit stop {pipeline} --force`, `conduit positions {pipeline} --source {connector} {place}`, "
        f"`conduit start {pipeline}`"
    )


def ways_out(source: Source, once: str, setting: str = "missing: skip") -> str:
    """Returns what an operator can do to go on without it: by a setting, or by the commands `once` for this once."""
    pipeline, connector = source.pipeline or "PIPELINE", source.connector or "SOURCE"
    return (
        f"To go on without it, set `{setting}` in the settings of {connector} and call `conduit start {pipeline}`; "
        f"or, for this once, {once}"
    )
