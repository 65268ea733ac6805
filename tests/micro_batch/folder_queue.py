"""A queue that is a folder: a message is a file; one that was received is hidden until it is deleted or let go.

And a feed whose pages come one after the other: where one ends is known when it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec, Token
from conduit_tasks.connectors.capabilities import Queue, Replayable
from conduit_tasks.record.schema import read_batch
from conduit_tasks.settings import settings


class FolderQueue(Queue):
    spec = Spec("folder-queue", "", (Option("path", "", required=True), Option("parallel", "", default="1")))
    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self.folder = Path(settings().path(self.settings["path"]))

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        if not list(self.folder.glob("*.new")):
            return []
        return [
            Slice(str(n), "", None, None, hint=limit.records or 100, open=True)
            for n in range(int(self.settings["parallel"]))
        ]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        taken = sorted(self.folder.glob("*.new"))[: slice.hint]
        for path in taken:
            path.rename(path.with_suffix(".hidden"))
        names = [path.stem for path in taken]
        if names:
            after = pa.array([path.with_suffix(".hidden").read_bytes() for path in taken], pa.binary())
            yield read_batch(pa.array(names).cast(pa.binary()), after=after)
        self.got = json.dumps(names).encode()

    def reached(self, slice: Slice) -> Token:
        return self.receipts.put(self.got)

    def ack(self, position: Position) -> None:
        for name in position.values():
            for receipt in json.loads(self.receipts.get(name)):
                (self.folder / f"{receipt}.hidden").unlink(missing_ok=True)
                with (self.folder / "deleted").open("a") as log:
                    log.write(f"{receipt}\n")


class PagedFeed(Replayable):
    """Pages of three numbers; where the next begins stands at the end of a page."""

    spec = Spec("paged-feed", "", (Option("path", "", required=True),))

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        start = position.get("") or 0
        there = int(Path(settings().path(self.settings["path"])).read_text())
        return [Slice("", "", start, None, open=True)] if start < there else []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        there = int(Path(settings().path(self.settings["path"])).read_text())
        self.end = min(there, slice.start + 3)
        numbers = [str(n).encode() for n in range(slice.start, self.end)]
        yield read_batch(pa.array(numbers, pa.binary()), after=pa.array(numbers, pa.binary()))

    def reached(self, slice: Slice) -> Token:
        return self.end

    def ack(self, position: Position) -> None:
        Path(settings().path("acked")).write_text(json.dumps(position))


SOURCE = FolderQueue
