"""Traces that a history leaves behind, as anybody can see them: destinations, dead letters, sources."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore, Key, row_key
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.settings import settings
from conduit_tasks.verify.queues import Queues
from conduit_tasks.verify.scenario import LOST, Scenario
from conduit_tasks.verify.scenario_file import PIPELINE

Event = tuple[str, int]
"""An event: (source, n)."""


class Outside:
    """Reads destinations, dead letters and sources from outside, without knowledge of how they came about."""

    def __init__(self, scenario: Scenario, home: Path, queues: Queues | None) -> None:
        self.scenario, self.home, self.queues = scenario, home, queues
        self.written: dict[str, int] = {}
        """Name of a file in the folder of `few` → a number that grows with each file written there."""
        self._rows: dict[tuple[str, int], list[Event]] = {}

    def lines(self, name: str) -> list[bytes]:
        path = self.home / "out" / f"{name}.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    def arrived(self, destination: str, *, under_way: bool = False) -> list[Event]:
        """Returns the events that a destination has, in its order. Raises ValueError on a torn line; `under_way`:
        leaves that out, as its writer may just have died."""
        if destination == "web":
            return [(s, n) for _, s, n in self.scenario.memory.taken]
        if destination == "table":
            return self._table()
        return [event for place in self.places(destination, under_way=under_way) for event in place]

    def places(self, destination: str, *, under_way: bool = False) -> list[list[Event]]:
        """Returns the events in the folder of a file destination, if it has one, and in its file of lines. Raises
        ValueError on a torn line."""
        folders = [self._folder()] if destination == "few" and self.scenario.bulk else []
        out = list[Event]()
        for line in self.lines(destination):
            if not line.endswith(b"\n"):
                if under_way:
                    break
                raise ValueError(f"the file of {destination} ends with a torn line: {line!r}")
            event = json.loads(line)
            out.append((event["s"], event["n"]))
        return [*folders, out]

    def _folder(self) -> list[Event]:
        """Returns the events in the files of `few`, in the order in which the files were written."""
        import pyarrow.parquet as pq

        out = list[Event]()
        paths = [path for path in (self.home / "out/few").glob("*.parquet") if not path.name.startswith(".")]
        for path in sorted(paths, key=lambda path: self.written.get(path.name, 0)):
            # A file is written again under its name only.
            of = path.name, self.written.get(path.name, 0)
            if of not in self._rows:
                self._rows[of] = [(row["s"], row["n"]) for row in pq.ParquetFile(path).read(["s", "n"]).to_pylist()]
            out += self._rows[of]
        return out

    def _table(self) -> list[Event]:
        path = self.home / "out/table.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(path)
        try:
            return [(str(s), int(n)) for s, n in connection.execute("SELECT s, n FROM events ORDER BY rowid")]
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()

    def dead(self) -> dict[str, list[tuple[Event, str]]]:
        """Returns destination (`_pipeline`: before the fan-out) → its dead letters: (event, error class)."""
        out: dict[str, list[tuple[Event, str]]] = {}
        for row, event in self._letters():
            out.setdefault(row["destination"], []).append((event, row["error_class"]))
        return out

    def open(self) -> dict[str, set[Event]]:
        """Returns destination → events of dead letters that can be sent again: the broker has them in its index."""
        out: dict[str, set[Event]] = {}
        with closing(open_broker(PIPELINE)) as broker:
            for row, event in self._letters():
                where = row["destination"]
                if broker.dead_letters.is_dead(row_key(row), ["" if where == BEFORE_FAN_OUT else where]):
                    out.setdefault(where, set()).add(event)
        return out

    def stored(self, destination: str) -> set[Key]:
        """Returns the keys of a destination's stored letters ("": of those before the fan-out)."""
        store = DeadLetterStore(settings().path(settings().dead_letters), PIPELINE)
        return {row_key(row) for row in store.rows(destination or BEFORE_FAN_OUT, [])}

    def unstored(self, destination: str) -> int:
        """Returns the number of letters that are in the broker's index and nowhere else."""
        with closing(open_broker(PIPELINE)) as broker:
            index = {(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in broker.dead_letters.entries(destination)}
        return len(index - self.stored(destination)) if index else 0

    def parked(self, destination: str) -> set[Event]:
        """Returns the events of a destination that are stored behind a dead letter of their key."""
        store = DeadLetterStore(settings().path(settings().dead_letters), PIPELINE, destination, parked=True)
        found = {self.event(row["connector"], bytes(row["position"])) for row in store.rows(destination)}
        return {event for event in found if event is not None}

    def _letters(self) -> Iterator[tuple[dict[str, Any], Event]]:
        for row in DeadLetterStore(settings().path(settings().dead_letters), PIPELINE).list():
            event = self.event(row["connector"], bytes(row["position"]))
            assert event is not None, (
                f"a dead letter of {row['connector']} at {row['position']!r}, where nothing begins"
            )
            yield row, event

    def event(self, source: str, position: bytes) -> Event | None:
        """Returns the event at a record's position; None if none begins there."""
        if self.scenario.queued:
            return source, int(position.rpartition(b"-")[2])
        offset, starts = int(position.rpartition(b":")[2]), self.offsets(source)
        return (source, starts.index(offset)) if offset in starts else None

    def waiting(self, source: str) -> int:
        """Returns the number of messages of a queue that are not deleted."""
        return len(self.queues.messages.get(source, {})) if self.queues is not None else 0

    def offsets(self, source: str) -> list[int]:
        """Returns the offset of each event in its file; the last one is the end of the file."""
        at, out = 0, [0]
        path = self.home / "data" / f"{source}.jsonl"
        if source == LOST and self.scenario.gone is not None:
            path = self.home / "data/gone"
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            at += len(line)
            out.append(at)
        return out
