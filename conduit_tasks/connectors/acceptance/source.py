"""Checks of a positional source: a second read gives the same records, and none is missed or read twice.

The checks of a queue are in `acceptance.queue`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from conduit_tasks.connectors.acceptance.records import ORIGIN, Marked, once
from conduit_tasks.connectors.acceptance.report import Checks, NotTried, Unmet
from conduit_tasks.connectors.acceptance.resources import leaving_nothing_open
from conduit_tasks.connectors.base import Limit, Position, Slice, Source
from conduit_tasks.connectors.capabilities import Queue, Watchable
from conduit_tasks.errors import Unavailable
from conduit_tasks.record.record import OPERATIONS, Record

MOST = 20_000
"""Limit of records that the suite reads; a source with more counts as endless."""
PAGE = 1_000
"""Records of a micro-batch if the size does not matter."""
STEPS = 7
"""Approximate number of micro-batches in which everything is read again."""
MORE = 10
"""Records that are written once everything was read."""
ERROR = "conduit.error"
"""Metadata of a record that cannot be decoded; its data is raw."""

Row = tuple[Any, ...]
"""One record as it was read, comparable."""
Put = Callable[[Sequence[Record]], None]
"""Puts records into the system that the source reads."""


@dataclass
class InMemory:
    """Receipts of one test."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> str:
        name = f"receipts-{len(self.kept)}"
        self.kept[name] = bytes(data)
        return name

    def get(self, name: str) -> bytes:
        return self.kept[name]


@dataclass
class Reading:
    """Records that a source gave, and its position."""

    make: Callable[[], Source]
    position: Position = field(default_factory=dict)
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    """(partition, part) → records, in order."""
    records: list[Record] = field(default_factory=list)
    slices: int = 0
    ends: Position = field(default_factory=dict)
    """Ends of the slices of the last step: the position that a queue is given to ack."""

    @property
    def count(self) -> int:
        return len(self.records)

    def step(self, most: int, *, twice: bool = False, ack: Position | None = None) -> int:
        """Reads one micro-batch of at most `most` records with a new instance, then acks `ack`. `twice`: every slice is
        read again by another instance, and must be the same. Returns the number of slices."""
        source = self.make()
        try:
            slices = [_through_json(each) for each in source.plan(dict(self.position), Limit(records=most))]
            known = [each.records for each in slices]
            if None not in known and sum(n or 0 for n in known) > most:
                raise Unmet(f"plan took {sum(n or 0 for n in known)} records where {most} were allowed")
            if slices and isinstance(source, Watchable) and not source.news(dict(self.position)):
                raise Unmet("news() said that there is nothing where plan() found something: nobody would be woken")
            before, self.ends, count = dict(self.position), {}, self.count
            for slice in slices:
                self._take(slice, twice)
            if source.in_driver and self.count == count:
                # Only its session knows what is there, and only reading asks the session.
                return 0
            if slices and self.position == before:
                raise Unmet(f"plan made a slice that leads nowhere: {slices[0]}")
            if ack is not None:
                source.ack(ack)
        finally:
            source.close()
        return len(slices)

    def settle(self) -> None:
        """Acks the slices of the last step with a new instance, as a separate task does."""
        source = self.make()
        try:
            source.ack(self.ends)
        finally:
            source.close()

    def _take(self, slice: Slice, twice: bool) -> None:
        rows, records, end = self._read(slice)
        # Reading an open slice again may give other records; the first read that lands fixes them.
        if twice and not slice.open and self._read(slice)[0] != rows:
            raise Unmet(f"part '{slice.part}' from {slice.start} to {slice.end}: the second read differs")
        if slice.records is not None and slice.records != len(rows):
            raise Unmet(f"part '{slice.part}': plan counted {slice.records} records, read gave {len(rows)}")
        self.rows.setdefault((slice.partition, slice.part), []).extend(rows)
        self.records += records
        self.ends[slice.part] = end
        self.position = {**self.position, slice.part: end}
        self.slices += 1
        if self.count > MOST:
            raise Unmet(f"more than {MOST} records came; give a source that comes to an end, a small one")

    def _read(self, slice: Slice) -> tuple[list[Row], list[Record], Any]:
        """Reads a slice with a new instance, as in an executor. Returns rows, records, and the end of the slice."""
        source = self.make()
        try:
            rows, records = _read(source, slice)
            metadata = source.metadata(slice)
            if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
                raise Unmet(f"metadata() must map text to text, not {metadata!r}")
            end = source.reached(slice) if slice.open else slice.end
        finally:
            source.close()
        return rows, records, _through_json(replace(slice, end=end)).end


def source_checks(checks: Checks, make: Callable[[], Source], marked: Marked, put: Put | None, wait: float) -> None:
    """Reads all records there are; `put` writes more. `wait`: seconds in which those must become readable."""
    whole = Reading(make)
    with checks.check("everything that is there is read") as check:
        drain(whole, marked, wait)
        if not whole.count:
            raise Unmet("there is nothing to read; put records there, or give what does: the destination, or feed")
        check.why = f"{whole.count} records in {whole.slices} slices"
    if not checks.sound:
        return
    with checks.check("no two records of a partition have the same position") as check:
        check.why = unique(whole)
    resumed = Reading(make)
    most = max(1, whole.count // STEPS)
    with checks.check("a slice that is read again gives the same, in small steps and after acks") as check:
        # The position comes from the broker: acks trail the reads.
        resumed.step(most, twice=True, ack={})
        with leaving_nothing_open():
            acked: Position = {}
            while before := dict(resumed.position):
                if not resumed.step(most, twice=True, ack=acked):
                    break
                acked = before
        check.why = f"{resumed.slices} slices"
    if not checks.sound:
        return
    with checks.check("resumed at a position, nothing is missed and nothing comes twice"):
        _same(whole, resumed)
    with checks.check("where nothing is new there is no slice; an ack may be given again"):
        for _ in range(2):
            if resumed.step(most, ack=resumed.position):
                raise Unmet("plan made a slice at the end of everything that there is")
    with checks.check("what comes later is read from there, and only that") as check:
        if put is None:
            raise NotTried("give the destination of the same system, or feed")
        seen = resumed.count
        more = marked.records(MORE)
        put(more)
        drain(resumed, marked, wait)
        if resumed.count != seen + MORE:
            raise Unmet(f"{MORE} records were put there, {resumed.count - seen} were read")
        check.why = f"{MORE} records"
    if put is not None:
        with checks.check("what was put there is read, each record once") as check:
            check.why = once(marked, marked.count(resumed.records))


def maker(cls: type[Source], settings: Mapping[str, str]) -> Callable[[], Source]:
    """Returns a function that makes the source as the engine does."""
    receipts = InMemory()

    def make() -> Source:
        source = cls(settings)
        source.pipeline, source.connector = ORIGIN.pipeline, ORIGIN.connector
        if isinstance(source, Queue):
            source.receipts = receipts
        return source

    return make


def _read(source: Source, slice: Slice) -> tuple[list[Row], list[Record]]:
    from conduit_tasks.record.schema import READ_SCHEMA, to_records

    rows: list[Row] = []
    records: list[Record] = []
    for batch in source.read(slice):
        if not batch.schema.equals(READ_SCHEMA):
            raise Unmet(f"read gave columns {batch.schema.names}, not those of READ_SCHEMA")
        columns = batch.to_pydict()
        if any(code is None or not 0 <= code < len(OPERATIONS) for code in columns["operation"]):
            raise Unmet(f"an operation is none of {', '.join(OPERATIONS)}")
        if None in columns["position"]:
            raise Unmet("a record has no position")
        rows += [(*row[:2], tuple(row[2] or ()), *row[3:]) for row in zip(*columns.values(), strict=True)]
        made = to_records(batch, ORIGIN)
        for record in made:
            for data in (record.key, record.before, record.after):
                if data is not None and not isinstance(data, bytes | dict):
                    raise Unmet(f"structured data must be an object, not {type(data).__name__}")
            if ERROR in record.metadata and isinstance(record.after, dict):
                raise Unmet(f"a record with {ERROR} must be raw")
        records += made
    return rows, records


def _through_json(slice: Slice) -> Slice:
    """Returns the slice as the broker stores it, as JSON. Raises Unmet if that changes it."""
    import orjson

    kept = Slice(**orjson.loads(orjson.dumps(asdict(slice))))
    if kept != slice:
        raise Unmet(f"part '{slice.part}': start, end and hint must be JSON values: {slice}")
    return kept


def drain(reading: Reading, marked: Marked, wait: float) -> None:
    """Reads until nothing is left and every marked record is there, or until nothing came for `wait` seconds.
    Unavailable is retried for as long, as in a pipeline, and raised after that."""
    deadline = time.monotonic() + wait
    while True:
        try:
            slices = reading.step(PAGE)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        if slices:
            deadline = time.monotonic() + wait
        elif not marked.missing(marked.count(reading.records)) or time.monotonic() > deadline:
            return
        else:
            time.sleep(0.05)


def unique(reading: Reading) -> str:
    for partition in {partition for partition, _ in reading.rows}:
        seen: set[bytes] = set()
        for (of, part), rows in reading.rows.items():
            for row in rows if of == partition else ():
                if row[0] in seen:
                    raise Unmet(f"two records of part '{part}' have the position {row[0]!r}")
                seen.add(row[0])
    return f"{reading.count} positions"


def _same(whole: Reading, resumed: Reading) -> None:
    for place in whole.rows.keys() | resumed.rows.keys():
        first, second = whole.rows.get(place, []), resumed.rows.get(place, [])
        if first == second:
            continue
        said = f"{len(second)} records in small steps, {len(first)} at once"
        if len(first) == len(second):
            at = next(n for n, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
            said = f"record {at + 1} is another one in small steps"
        raise Unmet(f"part '{place[1]}': {said}")
