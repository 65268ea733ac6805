"""The gateway's own copy of events, for `durability: spool`, put back into a Redis that lost them: the loss of Redis
then loses no event (SEMANTICS X7).

Files beside the spool, one per gateway process and 64 MiB, appended to and fsynced after Redis has stored a group and
before its producers are answered. A record is a chunk with the id that Redis gave it. A restore keeps these numbers, so
that events that the pipeline has planned already are not planned again. A file is removed when everything in it is
acked, and so is in the spool.
"""

from __future__ import annotations

import fcntl
import heapq
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.gateway.store import Budget, Chunk, IngestStore, JournalLost
from conduit_tasks.gateway.verify import Mark
from conduit_tasks.spool.durable import make_folders, sync_folder
from conduit_tasks.waits import lock

log = logging.getLogger("conduit.gateway")

SEGMENT = 64 << 20
"""Bytes after which a new file is begun."""
BATCH_BYTES, BATCH_CHUNKS = 4 << 20, 1_000
"""Limits of one call that puts chunks back into Redis."""
_HEAD = struct.Struct("<4sQQIII")
_MAGIC = b"CTJ1"
_NAME = "name"


class Journal:
    """The journal of one source. Its `name` is the same for every gateway that shares the folder. Redis keeps the name:
    a Redis without it has lost the events of the journal. Raises BrokerUnavailable if the journal cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] | None = None
        self._newest = 0
        """The highest number in our own file."""
        self._lock = threading.Lock()
        with _writing(folder):
            make_folders(folder)
            self.name = self._named()
        self.known = max((chunk.number for path in self._files() for chunk in _read(path, data=False)), default=0)
        """The highest number in the journal: a Redis whose last number is lower has lost events."""

    def append(self, chunks: Sequence[Chunk]) -> None:
        """Appends chunks; they are durable on return. Raises BrokerUnavailable if they cannot be written."""
        if not chunks:
            return
        records = b"".join([_record(chunk) for chunk in chunks])
        with self._lock, _writing(self.folder):
            file = self._file or self._begin()
            at = file.tell()
            try:
                file.write(records)
                os.fdatasync(file.fileno())
            except OSError:
                # A torn record would hide the records appended after it.
                self._end()
                os.truncate(file.name, at)
                raise
            self._newest = chunks[-1].number
            self.known = max(self.known, self._newest)
            if at + len(records) >= SEGMENT:
                self._end()

    def chunks(self) -> Iterator[Chunk]:
        """Yields all chunks of the journal, of every gateway process, by number."""
        return heapq.merge(*(_read(path) for path in self._files()), key=lambda chunk: chunk.number)

    def clean(self, acked: int) -> None:
        """Removes the files whose chunks are all acked, but no file that another live gateway writes."""
        with self._lock, _writing(self.folder):
            if self._file is not None and self._newest <= acked:
                self._end()
            for path in self._files():
                if self._file is not None and path.name == Path(self._file.name).name:
                    continue
                with path.open("rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        continue
                    if all(chunk.number <= acked for chunk in _read(path, data=False)):
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the open file."""
        with self._lock:
            self._end()

    def _named(self) -> str:
        path = self.folder / _NAME
        if not path.exists():
            side = self.folder / f".{_NAME}.{secrets.token_hex(8)}"
            with side.open("w") as file:
                file.write(secrets.token_hex(16))
                file.flush()
                os.fsync(file.fileno())
            try:
                # The first of several gateways sets the name.
                os.link(side, path)
            except FileExistsError:
                pass
            finally:
                side.unlink()
            sync_folder(self.folder)
        return path.read_text()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))

    def _begin(self) -> IO[bytes]:
        while True:
            path = self.folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}.journal"
            file = path.open("xb", buffering=0)
            lock(file)
            # Another gateway may have removed the file before it was locked: it was still empty.
            if path.exists():
                break
            file.close()
        self._file = file
        sync_folder(self.folder)
        return file

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns errors of the disk into BrokerUnavailable: producers are told to come back."""
    try:
        yield
    except OSError as error:
        raise BrokerUnavailable(
            f"the gateway's journal in {folder} cannot be written: {error.strerror}; make room, or fix the disk"
        ) from error


def _chunk(id: str, count: int, data: bytes) -> Chunk:
    number, total = id.split("-")
    return Chunk(int(number), int(total), count, data)


def _record(chunk: Chunk) -> bytes:
    head = _HEAD.pack(_MAGIC, chunk.number, chunk.total, chunk.count, len(chunk.data), zlib.crc32(chunk.data))
    return head + chunk.data


def _read(path: Path, *, data: bool = True) -> Iterator[Chunk]:
    """Yields the chunks of a file, up to a torn one, whose producers were never answered. `data` False: without their
    data."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            magic, number, total, count, length, checksum = _HEAD.unpack(head)
            if magic != _MAGIC or file.tell() + length > size:
                return
            if not data:
                file.seek(length, os.SEEK_CUR)
                yield Chunk(number, total, count, b"")
                continue
            found = file.read(length)
            if zlib.crc32(found) != checksum:
                log.error("%s: what is behind byte %d is damaged and left out", path, file.tell() - length)
                return
            yield Chunk(number, total, count, found)


class JournaledStore:
    """An `IngestStore` with a journal; puts the journal back into a Redis that has lost it."""

    def __init__(
        self,
        store: IngestStore,
        journal: Journal,
        *,
        wait_fsync: bool = False,
        remembered: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Takes `remembered`: see `IngestStore.add`; it may be set again."""
        self.store, self.journal, self.remembered = store, journal, remembered
        self._add = partial(store.add, wait_fsync=wait_fsync)

    def add(
        self,
        gateway: str,
        group: int,
        counts: Sequence[int],
        chunks: Sequence[bytes],
        budget: Budget,
        *,
        marks: Sequence[Sequence[Mark]] = (),
    ) -> list[str | None]:
        """Stores chunks as `IngestStore.add` does, and makes them durable in the journal, too."""
        while True:
            try:
                ids = self._add(
                    gateway,
                    group,
                    counts,
                    chunks,
                    budget,
                    marks=marks,
                    journal=self.journal.name,
                    known=self.journal.known,
                    remembered=self.remembered,
                )
                break
            except JournalLost:
                self.restore()
        new = [n for n, id in enumerate(ids) if id and id[0].isdigit()]
        self.journal.append([_chunk(ids[n] or "", counts[n], chunks[n]) for n in new])
        if settled := [mark for n in new for mark in (marks[n] if marks else ())]:
            # Only now: the answer to a request that comes again relies on the journal, too.
            self.store.settle(settled, self.remembered)
        return ids

    def look(self) -> None:
        """Puts back the chunks that Redis has lost; if it has lost none, removes files that are not needed any more."""
        state = self.store.state()
        if state.get("journal") != self.journal.name or int(state.get("last", 0)) < self.journal.known:
            self.restore()
        else:
            self.journal.clean(int(state["acked"]))

    def restore(self) -> None:
        """Puts the journal's chunks back into Redis. Two may run at once: chunks that are there already stay."""
        batch: list[Chunk] = []
        size = back = 0
        for chunk in self.journal.chunks():
            batch.append(chunk)
            size += len(chunk.data)
            if size >= BATCH_BYTES or len(batch) >= BATCH_CHUNKS:
                back += self.store.restore("", batch)
                batch, size = [], 0
        back += self.store.restore(self.journal.name, batch)
        if back:
            log.warning("put %d chunks of events back into Redis, which had lost them", back)
