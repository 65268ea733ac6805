"""Stores of spool files: a local folder, or any filesystem that Arrow reaches by URL.

In both, a file is visible under its name only once all of it is durable. Paths are relative to the store's root, with
"/".
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from conduit_tasks.spool.durable import make_folders, sync_folder

OBJECT_STORES = {"s3", "gcs", "abfs"}
"""Types of object stores: an object appears when its PUT completes, so nothing needs renaming; folders do not exist."""


Stamp = tuple[int | None, ...]
"""Marks that tell a file from another one that replaces it under its name: time, size and, on this machine, inode."""


class Sink:
    """A file that is being written, not visible yet; keeps size and checksum (CRC-32) of its data. Raises OSError."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.crc = file, 0, 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.file.write(view)
        self.crc = zlib.crc32(view, self.crc)
        self.size += len(view)
        return len(view)

    # Methods that Arrow calls on a Python file; it is closed by `commit` or `abort`, never as a side effect of the
    # Parquet writer.
    closed = False

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: durability comes with `commit`."""

    def close(self) -> None:
        """Does nothing: see `commit`."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def commit(self) -> None:
        """Makes the file durable and visible under its name."""
        raise NotImplementedError

    def abort(self) -> None:
        """Leaves nothing behind. Never raises; harmless after `commit`."""
        raise NotImplementedError


class Store(Protocol):
    """A tree of files, each of which appears only once it is complete."""

    def create(self, path: str) -> Sink: ...

    def open(self, path: str) -> pa.NativeFile:
        """Opens a file for reading. Raises OSError, including FileNotFoundError."""

    def size(self, path: str) -> int | None:
        """Returns the size of a file in bytes; None if there is no such file."""

    def names(self, folder: str) -> list[tuple[str, bool]]:
        """Returns (name, is a folder) of the entries directly in `folder`, sorted; [] if there are none."""

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Returns name → stamp of the files directly in `folder`; {} if there are none."""

    def delete(self, path: str) -> None:
        """Removes a file, or a folder with everything in it; does nothing if there is none."""

    def uri(self, path: str) -> str:
        """Returns the URI as Spark takes it: scheme and path, not percent-encoded."""


def put(store: Store, path: str, data: Any) -> None:
    """Writes a small file, or one that is complete in memory. It replaces an old file once all of it is durable;
    otherwise nothing is left of it. Raises OSError."""
    sink = store.create(path)
    try:
        sink.write(data)
        sink.commit()
    except BaseException:
        sink.abort()
        raise


class LocalStore:
    """A folder of this machine (or of a network mount)."""

    def __init__(self, root: Path) -> None:
        self.root, self._root = root, str(root)

    def create(self, path: str) -> Sink:
        return _LocalSink(self.root / path)

    def open(self, path: str) -> pa.NativeFile:
        # As text: a look at dead letters opens thousands of files, and making a `Path` takes as long as reading one.
        return pa.OSFile(f"{self._root}/{path}")

    def size(self, path: str) -> int | None:
        try:
            return (self.root / path).stat().st_size
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[tuple[str, bool]]:
        try:
            return sorted((entry.name, entry.is_dir()) for entry in os.scandir(self.root / folder))
        except FileNotFoundError:
            return []

    def stamps(self, folder: str) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        try:
            for entry in os.scandir(self.root / folder):
                # One that was removed meanwhile is none.
                with suppress(FileNotFoundError):
                    if not entry.is_dir():
                        said = entry.stat()
                        found[entry.name] = (said.st_mtime_ns, said.st_size, said.st_ino)
        except FileNotFoundError:
            return {}
        return found

    def delete(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            # Two runs may collect the same micro-batch: a file that the other one has removed meanwhile is no error.
            shutil.rmtree(target, onerror=_unless_gone)
        else:
            target.unlink(missing_ok=True)

    def uri(self, path: str) -> str:
        return f"file://{self.root / path}"


class _LocalSink(Sink):
    def __init__(self, target: Path) -> None:
        self.target = target
        make_folders(target.parent)
        self.aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        super().__init__(self.aside.open("xb", buffering=0))

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            # A raw file may write less than it is given, most of all just before the disk is full.
            written += os.write(self.file.fileno(), view[written:])
        self.crc = zlib.crc32(view, self.crc)
        self.size += written
        return written

    def commit(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()
        self.aside.replace(self.target)
        sync_folder(self.target.parent)

    def abort(self) -> None:
        self.file.close()
        self.aside.unlink(missing_ok=True)


def _unless_gone(_: Any, __: str, error: Any) -> None:
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


class ArrowStore:
    """A filesystem behind a URL: `s3://`, `gs://`, `hdfs://`, `fsspec+…://`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, base = pafs.FileSystem.from_uri(self.url)
        self.base = base.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self.base}/{path}".rstrip("/")

    def create(self, path: str) -> Sink:
        return _RemoteSink(self.fs, self._at(path))

    def open(self, path: str) -> pa.NativeFile:
        return self.fs.open_input_file(self._at(path))

    def size(self, path: str) -> int | None:
        info = self.fs.get_file_info(self._at(path))
        return info.size if info.type == pafs.FileType.File else None

    def names(self, folder: str) -> list[tuple[str, bool]]:
        infos = self.fs.get_file_info(pafs.FileSelector(self._at(folder), allow_not_found=True))
        return sorted((info.base_name, info.type == pafs.FileType.Directory) for info in infos)

    def stamps(self, folder: str) -> dict[str, Stamp]:
        infos = self.fs.get_file_info(pafs.FileSelector(self._at(folder), allow_not_found=True))
        return {i.base_name: (i.mtime_ns, i.size) for i in infos if i.type == pafs.FileType.File}

    def delete(self, path: str) -> None:
        info = self.fs.get_file_info(self._at(path))
        if info.type == pafs.FileType.Directory:
            self.fs.delete_dir(info.path)
        elif info.type == pafs.FileType.File:
            self.fs.delete_file(info.path)

    def uri(self, path: str) -> str:
        return f"{self.url}/{path}".rstrip("/")


class _RemoteSink(Sink):
    """File that is collected on local disk and uploaded at once: an aborted upload must not become visible."""

    def __init__(self, fs: pafs.FileSystem, target: str) -> None:
        self.fs, self.target = fs, target
        super().__init__(tempfile.TemporaryFile())  # noqa: SIM115  it lives until commit or abort

    def commit(self) -> None:
        renames = self.fs.type_name not in OBJECT_STORES
        aside = f"{self.target}.{secrets.token_hex(4)}.tmp" if renames else self.target
        if renames:
            self.fs.create_dir(str(PurePosixPath(self.target).parent), recursive=True)
        self.file.seek(0)
        with self.fs.open_output_stream(aside) as out:
            while chunk := self.file.read(8 << 20):
                out.write(chunk)
        if renames:
            self.fs.move(aside, self.target)
        self.file.close()

    def abort(self) -> None:
        self.file.close()


def open_store(root: str) -> Store:
    """Opens the store of a local path or URL. Raises OSError or ValueError if Arrow does not know the scheme."""
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    return ArrowStore(root) if "://" in root else LocalStore(Path(root).absolute())
