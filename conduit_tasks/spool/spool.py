"""Files of a pipeline's micro-batches: their folders, reading in bounded parts with checksums, the sealed manifest that
counts, and a removal that readers survive (docs/architecture.md, "The spool")."""

from __future__ import annotations

import errno
import logging
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.errors import InvariantBroken, SpoolError, SpoolGone
from conduit_tasks.record.parquet import batches_of
from conduit_tasks.settings import settings
from conduit_tasks.spool.manifest import LOST, PartFile, SealedManifest, StageManifest
from conduit_tasks.spool.parts import ROW_GROUP, Writer
from conduit_tasks.spool.store import Store, open_store, put

log = logging.getLogger(__name__)

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Spool:
    """The spool at `root`: a local path or a URL (`file://`, `s3://`, …). Picklable.

    All paths taken and returned are relative to `root`. Every method raises SpoolError naming the file.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return (Spool, (self.root,))

    @cached_property
    def store(self) -> Store:
        try:
            return open_store(self.root)
        except (OSError, ValueError, pa.ArrowException) as e:
            raise SpoolError(f"the spool {self.root} cannot be opened: {e}; check `spool` (CONDUIT_SPOOL)") from e

    def folder(self, pipeline: str, micro_batch: int, node: str = "", token: int | None = None) -> str:
        """Returns the folder of a micro-batch, or of one attempt of one of its nodes."""
        base = f"{folder_name(pipeline)}/{micro_batch:010d}"
        return f"{base}/{folder_name(node)}-{token}" if node else base

    def uri(self, path: str) -> str:
        """Returns `path` as Spark takes it."""
        return self.store.uri(path)

    # Writing

    def writer(self, pipeline: str, micro_batch: int, node: str, token: int) -> Writer:
        """Returns a writer for the part files of one attempt; nothing is created before the first part."""
        return Writer(self.store, self.folder(pipeline, micro_batch, node, token), self._explain)

    def write_stage(self, manifest: StageManifest) -> str:
        """Writes the manifest of a stage, durable on return; returns its path, which the broker is told."""
        path = f"{self.folder(manifest.pipeline, manifest.micro_batch, manifest.node, manifest.token)}.json"
        return self.put(path, manifest.to_json())

    def write_sealed(self, manifest: SealedManifest) -> str:
        """Writes a sealed manifest, durable on return; returns its path, which the broker is told."""
        folder = self.folder(manifest.pipeline, manifest.micro_batch)
        return self.put(f"{folder}/manifest-{manifest.token}.json", manifest.to_json())

    def put(self, path: str, data: bytes) -> str:
        """Writes a small file, which replaces an old one once all of it is durable. Returns `path`."""
        try:
            put(self.store, path, data)
        except OSError as e:
            raise self._explain(path, e) from e
        return path

    # Reading

    def read_stage(self, path: str) -> StageManifest:
        return StageManifest.from_json(self.get(path), self.uri(path))

    def read_sealed(self, path: str) -> SealedManifest:
        return SealedManifest.from_json(self.get(path), self.uri(path))

    def read(
        self,
        file: PartFile,
        columns: Sequence[str] | None = None,
        row_filter: str | None = None,
        verify: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part file, in order, a row group at a time, in parts of at most CONDUIT_BATCH_BYTES.

        `row_filter`: a boolean column (`to.<destination>`): only rows in which it is true are returned, and row groups
        without such a row are not read. The size is always checked; `verify` also reads the whole file for its
        checksum.
        """
        self.check(file, verify)
        with self._open(file) as source:
            try:
                yield from _batches(pq.ParquetFile(source), file, columns, row_filter)
            except (OSError, pa.ArrowException) as e:
                raise SpoolError(f"{self.uri(file.path)} cannot be read: {e}") from e
            except KeyError as e:
                raise SpoolError(f"{self.uri(file.path)} has no column {e}") from e

    def columns(self, file: PartFile) -> list[str]:
        """Returns the names of a part file's columns."""
        self.check(file)
        with self._open(file) as source:
            try:
                names: list[str] = pq.read_schema(source).names
            except (OSError, pa.ArrowException) as e:
                raise SpoolError(f"{self.uri(file.path)} cannot be read: {e}") from e
            return names

    def check(self, file: PartFile, verify: bool = False) -> None:
        """Checks that the file is there with the size in its manifest, and with `verify` its checksum. Raises
        SpoolError if not."""
        where = self.uri(file.path)
        try:
            size = self.store.size(file.path)
            if size is None:
                raise FileNotFoundError(file.path)
            if size != file.bytes:
                raise SpoolError(f"{where} was changed: it has {size} bytes, its manifest says {file.bytes}; {LOST}")
            if verify and self._crc(file) != file.crc32:
                raise SpoolError(f"{where} was changed: its checksum differs from its manifest's; {LOST}")
        except OSError as e:
            raise self._unreadable(where, e) from e

    def _crc(self, file: PartFile) -> int:
        crc = 0
        with self.store.open(file.path) as source:
            while chunk := source.read(8 << 20):
                crc = zlib.crc32(chunk, crc)
        return crc

    def _open(self, file: PartFile) -> pa.NativeFile:
        try:
            return self.store.open(file.path)
        except OSError as e:
            raise self._unreadable(self.uri(file.path), e) from e

    def _unreadable(self, where: str, error: OSError) -> SpoolError:
        if isinstance(error, FileNotFoundError):
            return SpoolError(f"{where} is missing; {LOST}")
        return SpoolError(f"{where} cannot be read: {error}")

    def get(self, path: str) -> bytes:
        """Reads a small file that `put` wrote. Raises SpoolGone if there is none, SpoolError if it cannot be read."""
        try:
            with self.store.open(path) as source:
                return source.read()
        except FileNotFoundError as e:
            raise SpoolGone(f"{self.uri(path)} is not there: {e}; {LOST}") from e
        except OSError as e:
            raise SpoolError(f"{self.uri(path)} cannot be read: {e}; {LOST}") from e

    def open(self, uri: str) -> pa.NativeFile:
        """Opens a file that Spark wrote into the spool, by its URI from `uri` or `listing`."""
        try:
            return self.store.open(self._relative(uri))
        except OSError as e:
            raise SpoolError(f"{uri} cannot be read: {e}") from e

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Returns (name, is a folder) of the entries directly in a folder, sorted; [] if there are none."""
        try:
            return self.store.names(folder)
        except OSError as e:
            raise SpoolError(f"{self.uri(folder)} cannot be listed: {e}; check its mount and its permissions") from e

    def listing(self, folder_uri: str) -> list[str]:
        """Returns the URIs of the Parquet files directly in a folder, sorted."""
        folder = self._relative(folder_uri)
        names = self.entries(folder)
        return [self.uri(f"{folder}/{n}") for n, is_folder in names if not is_folder and n.endswith(".parquet")]

    def _relative(self, uri: str) -> str:
        base = self.uri("").rstrip("/") + "/"
        if not uri.startswith(base):
            raise SpoolError(f"{uri} is not in the spool {self.root}")
        return uri.removeprefix(base)

    # Collecting

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with everything in it; does nothing if there is none."""
        try:
            self.store.delete(path)
        except FileNotFoundError:
            return
        except OSError as e:
            raise SpoolError(f"{self.uri(path)} cannot be removed: {e}; check its permissions") from e

    def micro_batches(self, pipeline: str) -> list[int]:
        """Returns the numbers of the micro-batches that have any file left, ascending: sealed, open and abandoned
        ones."""
        return sorted(int(n) for n, is_folder in self.entries(folder_name(pipeline)) if is_folder and n.isdigit())

    def sealed(self, pipeline: str, micro_batch: int) -> str | None:
        """Returns the path of the newest sealed manifest of a micro-batch; None if there is none.

        If there are several, the one with the newest token is the one that sealed, or has the same content: nothing is
        sealed after a seal.
        """
        folder = self.folder(pipeline, micro_batch)
        found = [
            int(name.removeprefix("manifest-").removesuffix(".json"))
            for name, is_folder in self.entries(folder)
            if _is_manifest(name, is_folder)
        ]
        return f"{folder}/manifest-{max(found)}.json" if found else None

    def ids(self, manifest: str) -> str:
        """Returns the path of the index of ids of a sealed micro-batch. `manifest`: its path."""
        pipeline, micro_batch, name = manifest.split("/")
        token = name.removeprefix("manifest-").removesuffix(".json")
        return f"{pipeline}/index/{micro_batch}-{token}.ids"

    def collect(self, pipeline: str, micro_batch: int) -> None:
        """Removes a micro-batch and the files that dead attempts left of it. Repeating it after a crash completes it.

        Data first, the sealed manifest last: a reader that finds a manifest can still read the files it lists, or
        learns from the first missing one that collection began.
        """
        folder = self.folder(pipeline, micro_batch)
        entries = self.entries(folder)
        for name, _ in sorted(entries, key=lambda entry: (not entry[1], entry[0].startswith("manifest-"))):
            self.remove(f"{folder}/{name}")
        self.remove(folder)
        # After the manifest: a look that makes an index then removes it again if the manifest has gone.
        self._drop_ids(pipeline, micro_batch)

    def _drop_ids(self, pipeline: str, micro_batch: int) -> None:
        """Removes indexes of ids, and what a killed look left of one. They cost room only: whoever may not remove them,
        because another user has looked, goes on."""
        folder = f"{folder_name(pipeline)}/index"
        try:
            for name, _ in self.entries(folder):
                if name.removeprefix(".").startswith(f"{micro_batch:010d}-"):
                    self.remove(f"{folder}/{name}")
        except SpoolError as error:
            log.warning("indexes of ids of micro-batch %d stay: %s", micro_batch, error)

    def _explain(self, path: str, error: OSError) -> SpoolError:
        if error.errno in NO_ROOM:
            return SpoolError(
                f"no room for {self.uri(path)}: {error.strerror}. Nothing was lost; free space or move the spool "
                "(CONDUIT_SPOOL), and the next run goes on"
            )
        return SpoolError(f"{self.uri(path)} cannot be written: {error}")


def _is_manifest(name: str, is_folder: bool) -> bool:
    token = name.removeprefix("manifest-").removesuffix(".json")
    return not is_folder and name == f"manifest-{token}.json" and token.isdigit()


def folder_name(id: str) -> str:
    """Returns an id as a file name: `:` is not allowed everywhere, and `.` and `..` are folders already."""
    return id.replace(".", "%2E") if id in (".", "..") else quote(id, safe="-_.")


def _batches(
    parquet: pq.ParquetFile, file: PartFile, columns: Sequence[str] | None, row_filter: str | None
) -> Iterator[pa.RecordBatch]:
    limit = settings().batch_bytes
    if parquet.metadata.num_rows != file.rows:
        raise InvariantBroken(f"invariant 10: {file.path} has {parquet.metadata.num_rows} rows, of {file.rows} written")
    for group in range(parquet.num_row_groups):
        keep = None
        if row_filter is not None:
            keep = parquet.read_row_group(group, [row_filter]).column(row_filter).combine_chunks()
            wanted = pc.sum(keep).as_py() or 0
            if not wanted:
                continue
            if wanted == len(keep):
                keep = None
        at = 0
        for batch in batches_of(parquet, limit, ROW_GROUP, ROW_GROUP, row_groups=[group], columns=columns):
            if columns is not None and batch.schema.names != list(columns):
                # Arrow takes `to.a` for the parent of `to.a.b`.
                batch = batch.select(list(columns))  # noqa: PLW2901
            yield batch if keep is None else batch.filter(keep.slice(at, batch.num_rows))
            at += batch.num_rows
        if at != parquet.metadata.row_group(group).num_rows:
            raise InvariantBroken(f"invariant 10: {at} rows were read of row group {group} of {file.path}, not all")
