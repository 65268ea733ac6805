"""The files of a pipeline's newest micro-batches by stage, as the spool has them: nothing else is asked.

A stage has the name of its node: `sources.<id>` is what the source's processors made of what was read, `processors` the
sealed micro-batch, `destinations.<id>` what that destination's trigger wants of it. Beside the rows that went on, a
stage has those that failed in it, as they came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conduit_tasks.errors import SpoolError
from conduit_tasks.record.record import Origin
from conduit_tasks.spool.manifest import PartFile, SealedManifest, SliceEntry, StageManifest
from conduit_tasks.spool.names import known_as
from conduit_tasks.spool.spool import Spool, folder_name
from conduit_tasks.topology import Node, Pipeline


@dataclass(frozen=True)
class Stage:
    """One stage of one micro-batch. `origins`: per slice; `row_filter`: the column that says which rows are wanted;
    `sealed`: its manifest, None: it is not sealed yet."""

    micro_batch: int
    files: list[PartFile]
    nacked_files: list[PartFile]
    origins: list[Origin]
    sealed: SealedManifest | None
    row_filter: str | None = None


def newest(spool: Spool, pipeline: Pipeline, node: Node, most: int) -> Iterator[Stage]:
    """Yields a stage of the newest `most` micro-batches that the spool has, newest first, of those that have it. Raises
    SpoolError, unless a micro-batch was removed meanwhile."""
    for number in list(reversed(spool.micro_batches(pipeline.id)))[:most]:
        try:
            stage = stage_of(spool, pipeline, node, number)
        except SpoolError:
            if number in spool.micro_batches(pipeline.id):
                raise
            continue
        if stage is not None:
            yield stage


def stage_of(spool: Spool, pipeline: Pipeline, node: Node, number: int) -> Stage | None:
    """Returns a stage of a micro-batch; None if it has none (yet, or any more). Raises SpoolError."""
    path = spool.sealed(pipeline.id, number)
    sealed = spool.read_sealed(path) if path is not None else None
    if node.kind == "sources":
        return _of_source(spool, pipeline, node, number, sealed)
    if sealed is None:
        return None
    origins = _origins(pipeline, sealed.slices)
    if node.kind == "processors":
        return Stage(number, sealed.files, sealed.nacked_files, origins, sealed)
    known = known_as(spool, pipeline.id, node.id, sealed.matched)
    if not sealed.matched.get(known):
        return None
    column = f"to.{known}"
    files = [file for file in sealed.files if file.rows]
    has = bool(files) and column in spool.columns(files[0])
    return Stage(number, files, [], origins, sealed, column if has else None)


def _of_source(
    spool: Spool, pipeline: Pipeline, node: Node, number: int, sealed: SealedManifest | None
) -> Stage | None:
    own = _staged(spool, pipeline, node, number)
    if own is None:
        return None
    slices: list[SliceEntry] = []
    if sealed is not None:
        slices = sealed.slices
    else:
        # Slices are numbered over all sources, in the file's order.
        for source in pipeline.sources:
            staged = own if source.node == node else _staged(spool, pipeline, source.node, number)
            if staged is None:
                return None
            slices += staged.slices
            if staged is own:
                break
    return Stage(number, own.files, own.nacked_files, _origins(pipeline, slices), sealed)


def _staged(spool: Spool, pipeline: Pipeline, node: Node, number: int) -> StageManifest | None:
    """Returns what the newest attempt at a node has written. Attempts differ in nothing: they read the same slices."""
    prefix = f"{folder_name(node)}-"
    tokens = [
        int(name.removeprefix(prefix).removesuffix(".json"))
        for name, is_folder in spool.entries(spool.folder(pipeline.id, number))
        if not is_folder and name.startswith(prefix) and name.removeprefix(prefix).removesuffix(".json").isdigit()
    ]
    if not tokens:
        return None
    return spool.read_stage(f"{spool.folder(pipeline.id, number)}/{prefix}{max(tokens)}.json")


def _origins(pipeline: Pipeline, slices: list[SliceEntry]) -> list[Origin]:
    return [Origin(pipeline.id, entry.source, entry.partition, entry.metadata) for entry in slices]
