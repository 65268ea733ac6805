"""Checks of the state that a history leaves behind (`account`), seen from outside."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore, row_key
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.settings import settings
from conduit_tasks.verify.queues import Queues
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario import LOST, PIPELINE, Scenario

Event = tuple[str, int]
"""An event: (source, n)."""


class Outside:
    """Reads destinations, dead letters and sources from outside, without knowledge of how they came about."""

    def __init__(self, scenario: Scenario, home: Path, queues: Queues | None) -> None:
        self.scenario, self.home, self.queues = scenario, home, queues

    def lines(self, name: str) -> list[bytes]:
        path = self.home / "out" / f"{name}.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    def arrived(self, destination: str) -> list[Event]:
        """Returns the events that a destination has, in its order. Raises ValueError on a torn line."""
        if destination == "web":
            return [(s, n) for _, s, n in self.scenario.memory.taken]
        if destination == "table":
            return self._table()
        out = []
        for line in self.lines(destination):
            if not line.endswith(b"\n"):
                raise ValueError(f"the file of {destination} ends with a torn line: {line!r}")
            event = json.loads(line)
            out.append((event["s"], event["n"]))
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
                if broker.is_dead(row_key(row), ["" if where == BEFORE_FAN_OUT else where]):
                    out.setdefault(where, set()).add(event)
        return out

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


def account(scenario: Scenario, outside: Outside, found: Found, snapshot: dict[str, Any]) -> None:
    """Accounts for every event after everything was drained. `snapshot`: of `micro_batch.progress`."""
    dead, still = outside.dead(), outside.open()
    if scenario.gone is not None:
        _vanished(scenario, found, scenario.gone, snapshot["totals"].get("read", 0))
    for destination in scenario.destinations:
        state = next(d for d in snapshot["destinations"] if d["id"] == destination)
        _destination(scenario, outside, found, destination, dead.get(destination, []), state)
        certain = {
            (source, event["n"])
            for source in scenario.sources
            for event in scenario.events[source]
            if scenario.at(destination, event) == "nacked"
        }
        _redrivable(found, destination, certain, still.get(destination, set()))
    _before_fan_out(scenario, found, dead.get(BEFORE_FAN_OUT, []), snapshot)
    early = {(e["s"], e["n"]) for of in scenario.events.values() for e in of if scenario.before_fan_out(e) == "nacked"}
    _redrivable(found, BEFORE_FAN_OUT, early, still.get(BEFORE_FAN_OUT, set()))
    for source in snapshot["sources"]:
        if source["id"] == LOST and scenario.gone is not None:
            continue
        if scenario.queued:
            if waiting := outside.waiting(source["id"]):
                found.unacked += waiting
                found.broken(f"{waiting} messages of {source['id']} are not deleted")
            continue
        end = outside.offsets(source["id"])[-1]
        part = f"data/{source['id']}.jsonl"
        acked = source["acked"].get(part, {"offset": 0})["offset"]
        if acked != end:
            missing = sum(1 for at in outside.offsets(source["id"])[1:] if at > acked)
            found.unacked += missing
            found.broken(f"{missing} events of {source['id']} are not acked: {acked} of {end} bytes")
    if snapshot["unsealed"] is not None:
        found.broken(f"micro-batch {snapshot['unsealed']['number']} was left unsealed")


def _redrivable(found: Found, where: str, nacked: set[Event], still: set[Event]) -> None:
    """Reports dead letters that the broker does not know: they are never sent again."""
    if closed := nacked - still:
        found.loss += len(closed)
        found.broken(f"loss at {where}: its dead letters of {_some(closed)} are not in the broker's index")


def _vanished(scenario: Scenario, found: Found, gone: tuple[int, int], read: int) -> None:
    """Checks a file that is gone: only the events that had been read are expected; none of them is lost or made up."""
    of = read - sum(len(events) for source, events in scenario.events.items() if source != LOST)
    if not gone[0] <= of <= gone[1]:
        found.broken(f"{of} events of a file that is gone were read; it had been {gone[0]} to {gone[1]}")
    if scenario.unread and scenario.vanishing != "skip":
        found.broken("what was planned of a file that is gone was passed over, and nobody was asked")
    scenario.events[LOST] = scenario.events[LOST][: max(of, 0)]


def _destination(  # noqa: PLR0917 - what is known of one destination
    scenario: Scenario,
    outside: Outside,
    found: Found,
    destination: str,
    dead: list[tuple[Event, str]],
    state: dict[str, Any],
) -> None:
    try:
        arrived = outside.arrived(destination)
    except ValueError as error:
        found.broken(str(error))
        return
    expected: Counter[Event] = Counter()
    nacked: set[Event] = set()
    fates: Counter[str] = Counter()
    mayfly = {event for event, kind in dead if destination == "web" and kind in ("http 503", "unavailable", "timeout")}
    for source in scenario.sources:
        for event in scenario.events[source]:
            fate = scenario.at(destination, event)
            key = (source, event["n"])
            if fate == "delivered" and key not in mayfly:
                expected[key] = scenario.copies(event)
            elif fate == "nacked" or key in mayfly:
                fate = "nacked"
                nacked.add(key)
            if fate:
                fates[fate] += 1
    has = Counter(arrived)
    lost = expected - has
    # Some of a record's copies may have arrived before another's failure made all of them a nack.
    more = Counter({e: n for e, n in (has - expected).items() if e not in mayfly})
    if lost:
        found.loss += lost.total()
        found.broken(f"loss at {destination}: {_some(lost)}")
    if gone := nacked - {event for event, _ in dead}:
        found.loss += len(gone)
        found.broken(f"loss at {destination}: no dead letter of {_some(gone)}")
    if odd := {event for event, _ in dead} - nacked:
        found.broken(f"{destination} has dead letters of events that nothing failed: {_some(odd)}")
    found.duplicates += more.total()
    if more and destination != "web" and not (scenario.forgetful and destination != "table"):
        found.broken(f"duplicates at {destination}: {_some(more)}")
    if destination == "web" and more.total() > found.bound:
        found.broken(f"duplicates at web: {more.total()}, its interruptions explain {found.bound}")
    back = _inversions(scenario, destination, arrived)
    if back:
        found.inversions += len(back)
        found.broken(f"order at {destination}: {_some(back)}")
    _counters(scenario, found, destination, fates, state)


def _counters(scenario: Scenario, found: Found, destination: str, fates: Counter[str], state: dict[str, Any]) -> None:
    """Checks invariant 10: the broker's counters match what happened."""
    for name, count in (
        ("matched", fates.total()),
        ("delivered", fates["delivered"]),
        ("nacked", fates["nacked"]),
        ("filtered", fates["filtered"]),
    ):
        if state[name] != count:
            found.broken(f"Invariant 10: {destination} counted {state[name]} {name}, there are {count}")
    if state["behind"]:
        found.broken(f"{destination} is {state['behind']} micro-batches behind")


def _before_fan_out(scenario: Scenario, found: Found, dead: list[tuple[Event, str]], snapshot: dict[str, Any]) -> None:
    events = [event for source in scenario.sources for event in scenario.events[source]]
    nacked = {(e["s"], e["n"]) for e in events if scenario.before_fan_out(e) == "nacked"}
    has = {event for event, _ in dead}
    if gone := nacked - has:
        found.loss += len(gone)
        found.broken(f"loss: no dead letter of {_some(gone)}, which failed before the fan-out")
    if odd := has - nacked:
        found.broken(f"dead letters before the fan-out of events that nothing failed: {_some(odd)}")
    read = snapshot["totals"].get("read", 0)
    if read != len(events):
        found.broken(f"Invariant 10: {read} records were read, there are {len(events)}")


def _inversions(scenario: Scenario, destination: str, arrived: list[Event]) -> list[str]:
    """Returns first arrivals that come behind a later event of their source, or of their key with order `key`."""
    order = scenario.order if destination == "web" else "partition"
    if order == "none":
        return []
    seen: set[Event] = set()
    last: dict[Any, int] = {}
    out = []
    for source, n in arrived:
        if (source, n) in seen:
            continue
        seen.add((source, n))
        if scenario.queued:
            continue
        line = (source, scenario.events[source][n]["k"]) if order == "key" else source
        if n < last.get(line, -1):
            out.append(f"{n} of {source} behind {last[line]}")
        last[line] = max(n, last.get(line, -1))
    return out


def _some(items: Any) -> str:
    listed = sorted(map(str, items))
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
