"""Manifests: the content of a stage and of a sealed micro-batch, as JSON beside the data (docs/architecture.md, "The
spool").

The broker names the manifest that won; the state of a pipeline can be rebuilt from the sealed manifests alone (X7).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from conduit_tasks.errors import InvariantBroken, SpoolError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

VERSION = 1
"""Version of the manifests' format; raised if a reader of the old format would fail."""
LOST = (
    "restore it from a backup; without one, the destinations that need it are to begin again (docs/operations.md, "
    "'A file of the spool is lost')"
)
"""Advice for a file that is missing or was changed."""


@dataclass(frozen=True)
class PartFile:
    """One finished spool file. `path` is relative to the spool; `crc32` is over the whole file.

    `first`, `last`: (slice, n) of the first and last row; None in a file without rows.
    """

    path: str
    rows: int
    bytes: int
    crc32: int
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None


@dataclass(frozen=True)
class SliceEntry:
    """One slice as it was read: `records` is exact. Its place in the list is the slice's number."""

    source: str
    partition: str
    part: str
    start: Any
    end: Any
    records: int
    metadata: dict[str, str] = field(default_factory=dict)
    """Metadata that all records of the slice share (`Origin.metadata`)."""
    first_index: int | None = None
    """Index of its first record in the source's partition, if it is known."""


class _Json:
    """Conversion to and from JSON; an unknown version or a missing key is a SpoolError, never a guess."""

    def to_json(self) -> bytes:
        import orjson

        return orjson.dumps({"version": VERSION, **_fields(self)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes, where: str = "manifest") -> Self:
        """Reads a manifest. Raises SpoolError naming `where`."""
        import orjson

        try:
            loaded = orjson.loads(data)
            if loaded["version"] != VERSION:
                raise SpoolError(
                    f"{where} has version {loaded['version']}, this program reads version {VERSION}; "
                    "deliver it with the version that wrote it"
                )
            known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
            values = {name: value for name, value in loaded.items() if name in known}
            for name in ("files", "nacked_files"):
                values[name] = [_part(f) for f in values.get(name, [])]
            values["slices"] = [SliceEntry(**s) for s in values["slices"]]
            return cls(**values)
        except (orjson.JSONDecodeError, KeyError, TypeError) as e:
            raise SpoolError(f"{where} is not a manifest ({e}); {LOST}") from e


def _part(data: dict[str, Any]) -> PartFile:
    for name in ("first", "last"):
        if data.get(name) is not None:
            data[name] = tuple(data[name])
    return PartFile(**data)


@dataclass(frozen=True)
class StageManifest(_Json):
    """Output of one attempt of one node. `read`, `filtered`, `nacked` and `matched` (per destination) count
    records, not derived rows (invariant 10). `processors` has no slices of its own."""

    pipeline: str
    micro_batch: int
    node: str
    token: int
    slices: list[SliceEntry]
    files: list[PartFile] = field(default_factory=list)
    nacked_files: list[PartFile] = field(default_factory=list)
    read: int = 0
    filtered: int = 0
    nacked: int = 0
    matched: dict[str, int] = field(default_factory=dict)
    staged_at: float = 0.0
    """Seconds since the epoch; 0: an earlier version wrote it."""

    @property
    def written(self) -> int:
        """Number of records in `files`."""
        return self.read - self.filtered - self.nacked


@dataclass(frozen=True)
class SealedManifest(_Json):
    """A whole micro-batch: from here on it stands for its source (C16).

    `slices`: of all sources, in the pipeline file's order; `bases[i]`: seq of the first record of slice i;
    `files`: of the nodes that wrote the final records, in order; `config`: digest of the pipeline that read it.
    """

    pipeline: str
    micro_batch: int
    token: int
    config: str
    slices: list[SliceEntry]
    bases: list[int]
    total: int
    files: list[PartFile]
    matched: dict[str, int] = field(default_factory=dict)
    filtered: int = 0
    nacked: int = 0
    sealed_at: float = 0.0
    """Seconds since the epoch."""
    nacked_files: list[PartFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        expected = 0
        for entry, base in zip(self.slices, self.bases, strict=True):
            if base != expected:
                raise InvariantBroken(f"invariant 10: a slice of {entry.source} begins at {base}, not at {expected}")
            expected += entry.records
        if expected != self.total:
            raise InvariantBroken(
                f"invariant 10: micro-batch {self.micro_batch} has {expected} records, not {self.total}"
            )

    @property
    def positions(self) -> dict[str, dict[str, Any]]:
        """Source → part → its position after this micro-batch (without the parts that it did not touch)."""
        out: dict[str, dict[str, Any]] = {}
        for entry in self.slices:
            out.setdefault(entry.source, {})[entry.part] = entry.end
        return out

    def index_of(self) -> Callable[[int], int | None]:
        """Returns a function from a seq to the record's index in its source partition; None if it is not known."""
        import numpy as np

        bases = np.asarray(self.bases, np.int64)

        def index(seq: int) -> int | None:
            entry = self.slices[number := int(np.searchsorted(bases, seq, side="right")) - 1]
            return None if entry.first_index is None else entry.first_index + seq - int(bases[number])

        return index

    def source_of(self, seq: int) -> str:
        """Returns the source that a record came from."""
        return self.slices[bisect_right(self.bases, seq) - 1].source

    def seqs(self, batch: pa.RecordBatch) -> np.ndarray:
        """Returns per row, as int64, the record's number in the micro-batch, from the columns `slice` and `n`.

        Raises InvariantBroken if a row lies outside its slice.
        """
        import numpy as np

        slices = batch.column("slice").to_numpy()
        numbers = batch.column("n").to_numpy()
        if not len(slices):
            return np.empty(0, np.int64)
        sizes = np.array([s.records for s in self.slices], np.int64)
        if slices.min() < 0 or slices.max() >= len(sizes) or (numbers < 0).any() or (numbers >= sizes[slices]).any():
            raise InvariantBroken(
                f"invariant 10: a spooled row of micro-batch {self.micro_batch} lies outside its slice"
            )
        return np.asarray(self.bases, np.int64)[slices] + numbers


def _fields(of: Any) -> dict[str, Any]:
    """Returns name → value, without copies: `asdict` would copy the thousands of slices and files."""
    return {each.name: getattr(of, each.name) for each in fields(of)}
