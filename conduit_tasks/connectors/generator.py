"""`generator`: made-up records that come due at a rate, with Conduit's options, but always the same ones for the same
position.

Each value is a hash of the seed, the record's number and the field, so that a slice can be read anywhere, any
number of times (invariant 3), and a micro-batch that is read again holds the same records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors import options
from conduit_tasks.connectors.base import Limit, Option, Position, Slice, Spec
from conduit_tasks.connectors.capabilities import Replayable
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import OPERATIONS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SLICE = 50_000
"""Records that one task makes."""
UNBOUNDED = 100_000
"""Records per plan if neither the limit, nor the rate, nor the count says less."""
_BATCH = 10_000
_FIELD = "format.options."
_TYPES = ("int", "string", "time", "bool", "duration")
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_WORDS = (
    *("amber", "brook", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "ledge"),
    *("marsh", "north", "ocean", "prairie", "quarry", "ridge", "shoal", "tundra", "upland", "valley", "willow"),
)


class GeneratorSource(Replayable):
    """Token: {"next": number of the next record, "at": seconds since the epoch up to which `rate` is used up}."""

    local = True
    spec = Spec(
        "generator",
        "Makes records up, for trying things out; the same position gives the same record.",
        (
            Option("recordCount", "how many altogether; 0: no end", default="0"),
            Option("rate", "records per second at most, counted between runs; 0: no limit", default="0"),
            Option("operations", "comma-separated, taken in turn by chance", default="create"),
            Option("format.type", "how the payload is given", required=True, choices=("raw", "structured")),
            Option(f"{_FIELD}*", f"type of the payload's field of that name: {', '.join(_TYPES)}"),
            Option("seed", "a whole number; another seed gives other values", default="0"),
            Option("cloudevents.*", "a CloudEvents attribute: a constant, or a template"),
        ),
    )

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.count = options.integer(self.settings, "recordCount")
        self.rate = options.number(self.settings, "rate")
        self.seed = options.integer(self.settings, "seed")
        self.operations = options.words(self.settings, "operations")
        unknown = [o for o in self.operations if o not in OPERATIONS]
        if unknown or not self.operations:
            said = f"'{unknown[0]}'" if unknown else "nothing"
            raise ConfigError(f"generator: option 'operations' cannot hold {said}; it takes {', '.join(OPERATIONS)}")
        self.fields = {n.removeprefix(_FIELD): t for n, t in self.settings.items() if n.startswith(_FIELD)}
        for name, kind in self.fields.items():
            if kind not in _TYPES:
                raise ConfigError(f"generator: option '{_FIELD}{name}' cannot be '{kind}'; it is {', '.join(_TYPES)}")
        if not self.fields:
            raise ConfigError(f"generator: option '{_FIELD}<field>' is missing: name at least one field and its type")

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        now = time.time()
        one = 1 / self.rate if self.rate else 0.0
        token = position.get("") or {"next": 0, "at": now - max(1.0, one)}
        at = float(token["at"])
        first = int(token["next"])
        take = UNBOUNDED if limit.records is None else limit.records
        if self.count:
            take = min(take, self.count - first)
        if self.rate:
            # Records that a run does not take are due later, but after a long pause those of one minute at most.
            at = max(at, now - max(60.0, one))
            take = min(take, int((now - at) * self.rate + 1e-6))
        slices = []
        start: dict[str, Any] = token
        while take > 0:
            n = min(take, SLICE)
            first, take = first + n, take - n
            at = at + n / self.rate if self.rate else now
            end = {"next": first, "at": at}
            slices.append(Slice("", "", start, end, records=n))
            start = end
        return slices

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        from conduit_tasks.record.schema import READ_SCHEMA, record_columns

        first, end = int(slice.start["next"]), int(slice.end["next"])
        import pyarrow as pa

        for start in range(first, end, _BATCH):
            records = self._records(start, min(end, start + _BATCH))
            yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def _records(self, first: int, end: int) -> list[Any]:
        """Makes the records from number `first` up to `end`, which is excluded."""
        import numpy as np

        from conduit_tasks.record import jsons
        from conduit_tasks.record.record import Record

        numbers = np.arange(first, end, dtype=np.uint64)
        columns = [_values(kind, self._hash(numbers, i + 1), numbers) for i, kind in enumerate(self.fields.values())]
        chosen = (self._hash(numbers, 0) % np.uint64(len(self.operations))).tolist()
        raw = self.settings["format.type"] == "raw"
        out = []
        for n, choice, *values in zip(numbers.tolist(), chosen, *columns):
            payload: Any = dict(zip(self.fields, values))
            if raw:
                payload = jsons.dumps(payload)
            operation = self.operations[choice]
            before = payload if operation in ("update", "delete") else None
            after = None if operation == "delete" else payload
            out.append(Record(b"%d" % n, operation, key=b"%d" % n, before=before, after=after))
        return out

    def _hash(self, numbers: np.ndarray, stream: int) -> np.ndarray:
        """Returns 64 bits per number, independent for each stream (the finalizer of splitmix64)."""
        import numpy as np

        start = (self.seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) % (1 << 64)
        with np.errstate(over="ignore"):
            h = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return h ^ (h >> np.uint64(31))


def _values(kind: str, hashes: np.ndarray, numbers: np.ndarray) -> list[Any]:
    """Returns JSON values of one field: int (31 bits), string (three words), time (a second per record), bool,
    duration (nanoseconds, up to a second, as Go counts)."""
    import numpy as np

    if kind == "int":
        return (hashes >> np.uint64(33)).tolist()
    if kind == "bool":
        return (hashes >> np.uint64(63)).astype(bool).tolist()
    if kind == "duration":
        return (hashes % np.uint64(1_000_000_000)).tolist()
    if kind == "time":
        return [(_EPOCH + timedelta(seconds=n)).isoformat() for n in numbers.tolist()]
    words = np.array(_WORDS)
    picks = [words[((hashes >> np.uint64(shift)) % np.uint64(len(words))).astype(np.int64)] for shift in (0, 16, 32)]
    return [" ".join(three) for three in zip(*(p.tolist() for p in picks))]


SOURCE = GeneratorSource
