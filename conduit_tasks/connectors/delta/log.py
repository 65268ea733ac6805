"""Log of a Delta table, as its source reads it (Delta protocol, "Actions"): files that a version adds, whether it
removes rows, and tables that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow.fs as pafs

from conduit_tasks.connectors.delta.storage import storage_options
from conduit_tasks.errors import ConfigError, SourceError

REWRITTEN = "conduitRewritten"
"""Says in a commit that it rewrites the rows of the table, and changes none."""


def library() -> Any:
    """Returns the package `deltalake`. Raises ConfigError if it is not installed."""
    try:
        import deltalake
    except ImportError:
        raise ConfigError("delta: the package deltalake is missing: pip install 'conduit-tasks[delta]'") from None
    return deltalake


@dataclass(frozen=True)
class Added:
    """A file that a commit added: its path within the table, rows, bytes, values of the partition columns (as text, or
    of their types)."""

    path: str
    rows: int | None
    size: int
    partition: dict[str, Any]


class DeltaLog:
    """An existing table, opened for reading. Raises SourceError, which names it."""

    def __init__(self, uri: str, settings: Mapping[str, str]) -> None:
        deltalake = library()
        self.uri, self._options = uri, storage_options(settings)
        try:
            self.table = deltalake.DeltaTable(uri, storage_options=self._options or None)
        except deltalake.exceptions.TableNotFoundError:
            raise SourceError(f"delta: {uri} is no Delta table (yet); create it, or correct 'path'") from None
        except (OSError, deltalake.exceptions.DeltaError) as error:
            raise SourceError(f"delta: {uri} cannot be opened: {error}") from None
        mode = self.table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            raise SourceError(
                f"delta: {uri} maps its columns (delta.columnMapping.mode {mode}), which is not read here"
            )

    @property
    def version(self) -> int:
        """The newest version."""
        return int(self.table.version())

    @property
    def partition_columns(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def files(self) -> pafs.FileSystem:
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.uri, self._options or None))

    def whole(self, version: int) -> list[Added]:
        """Returns every file of the table as of `version`, in the order of their names."""
        import pyarrow as pa

        self.table.load_as_version(version)
        rows = pa.table(self.table.get_add_actions(flatten=False)).to_pylist()
        if pa.table(self.table.deletion_vectors()).num_rows:
            raise self._deletion_vectors()
        return [
            Added(unquote(r["path"]), r["num_records"], r["size_bytes"], dict(r.get("partition") or {}))
            for r in sorted(rows, key=lambda row: row["path"])
        ]

    def added(self, version: int) -> tuple[list[Added], bool]:
        """Returns the files that the commit `version` added to the data, and whether it removed or changed rows.

        Commits that only rearrange data (`dataChange` false: compaction; or rewritten for wider columns) add
        nothing. Raises SourceError if the commit no longer exists.
        """
        added: list[Added] = []
        removed = False
        for action in self._actions(version):
            if REWRITTEN in (action.get("commitInfo") or {}):
                return [], False
            if (remove := action.get("remove")) and remove.get("dataChange", True):
                removed = True
            if (add := action.get("add")) and add.get("dataChange", True):
                if add.get("deletionVector"):
                    raise self._deletion_vectors()
                stats = orjson.loads(add["stats"]) if add.get("stats") else {}
                partition = dict(add.get("partitionValues") or {})
                added.append(Added(unquote(add["path"]), stats.get("numRecords"), int(add["size"]), partition))
        return added, removed

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        try:
            with self.files().open_input_file(f"_delta_log/{version:020d}.json") as file:
                data = file.readall()
        except (FileNotFoundError, OSError):
            raise SourceError(
                f"delta: version {version} of {self.uri} is no longer in its log; what it added cannot be told. Raise "
                "delta.logRetentionDuration, and begin again under a new connector id with 'start: table'"
            ) from None
        return (orjson.loads(line) for line in data.splitlines() if line.strip())

    def _deletion_vectors(self) -> SourceError:
        return SourceError(
            f"delta: {self.uri} has deletion vectors, which are not read here; purge them (REORG TABLE … APPLY (PURGE))"
        )
