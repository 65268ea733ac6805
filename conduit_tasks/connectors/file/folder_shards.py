"""A folder of files to which several tasks write, each one shard of a micro-batch (`delivery.parallelism`).

Files are `[<field>=<value>/…]<name>-<seal>-<micro-batch>-<shard>-<first>-<last>.<end>`, by the seqs of their rows. No
state is kept: of a micro-batch, the files of a shard that end behind the confirmed records were never confirmed, nor
were any that are not of its division. A task removes them before its first write.

`.<name>.shards/` tells whether the folder has to be searched for them: per shard `<shard>.json`, the last micro-batch
that it has begun here, written before its first file exists.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from conduit_tasks.connectors.file.alone import alone, unavailable
from conduit_tasks.connectors.file.folder import FileFolder, Piece
from conduit_tasks.errors import Unavailable
from conduit_tasks.spool.durable import make_folders, replace_file

if TYPE_CHECKING:
    from conduit_tasks.connectors.rows import Rows, ShardName

PATIENCE = 10.0
"""Seconds in which the tasks of a micro-batch, which begin together, have each looked at what one task alone left."""
_PLACE = re.compile(r"-(\d{16}-\d{10,})-([kpn]\d\d)\.(\d\d)-(\d+)-(\d+)\.(?:parquet|jsonl)")


class Shards:
    """Files of the shards in a folder, whoever looks at them: one of the tasks, or one task alone (`shard` None)."""

    def __init__(self, parts: FileFolder, shard: ShardName | None) -> None:
        self._parts, self._shard = parts, shard
        self.marks = parts.folder / f".{parts.name}.shards"
        """The folder that tells who has begun what."""

    def tidy(self, rows: Rows) -> None:
        """Removes what was never confirmed of the micro-batch of these rows. Raises OSError."""
        sealed = rows.sealed
        if not any(self._begun(mark, sealed) for mark in self.marks.glob("*.json")):
            return
        for path in self._parts.folder.rglob(f"*{self._parts.name}-{sealed}-*"):
            if self._pending(path.name, rows):
                self._parts.remove(path)

    def _begun(self, mark: Path, sealed: str) -> bool:
        """Returns whether the shard that left this mark may have files that are to be removed here. Other shards of the
        same division remove their own."""
        if (
            self._shard is not None
            and mark.stem != str(self._shard)
            and mark.stem.startswith(f"{self._shard.division}.")
        ):
            return False
        try:
            return bool(orjson.loads(mark.read_bytes())["sealed"] >= sealed)
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError):
            # Then it is looked for, which is never wrong.
            return True

    def _pending(self, name: str, rows: Rows) -> bool:
        # What was not finished is beside it, as `.<name>.tmp`.
        place = _PLACE.fullmatch(name.removeprefix(".").removesuffix(".tmp").removeprefix(self._parts.name))
        if place is None or place[1] != rows.sealed:
            return False
        if self._shard is not None and place[2] != self._shard.division:
            return True
        mine = self._shard is None or int(place[3]) == self._shard.number
        return mine and not rows.confirmed(int(place[5]))

    def begin(self, sealed: str) -> None:
        """Notes, durably, that this shard begins a micro-batch here; one that Redis has forgotten may come later."""
        mark = self.marks / f"{self._shard}.json"
        if not self._begun(mark, sealed):
            replace_file(mark, orjson.dumps({"sealed": sealed}))

    def none_left(self) -> None:
        """Raises BlockingIOError if a task still writes whose number none of the present tasks has: one that stands
        still, and whose micro-batch is divided otherwise by now, or delivered by one task."""
        for path in self.marks.glob("*.lock"):
            if self._shard is None or int(path.stem) >= self._shard.count:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                finally:
                    os.close(fd)


class WholeFolder:
    """Writer of the folder if one task delivers: `FileFolder`, before whose first write into a micro-batch what several
    tasks have left of it is removed, if it was not confirmed or Redis has forgotten it."""

    def __init__(self, parts: FileFolder) -> None:
        self._parts = parts
        self._files = Shards(parts, None)
        self._tidied = ""
        """Micro-batch of which several tasks have left nothing."""

    def open(self, state: dict[str, Any] | None) -> None:
        """See FileFolder."""
        self._tidied = ""
        with alone(self._parts.folder, self.close):
            self._files.none_left()
        self._parts.open(state)

    def tidy(self, rows: Rows) -> None:
        """Removes what several tasks left of the micro-batch of these rows. Raises Unavailable."""
        if rows.seal and not rows.epoch and rows.sealed != self._tidied:
            try:
                self._files.tidy(rows)
            except OSError as error:
                raise unavailable(self._parts.folder, error) from error
            self._tidied = rows.sealed

    def write(self, pieces: Sequence[Piece], rows: Rows) -> dict[str, Any]:
        """Writes the pieces of these rows, durable on return. Raises Refused, Unavailable."""
        self.tidy(rows)
        return self._parts.write(pieces, rows)

    def close(self) -> None:
        self._parts.close()


class FolderShard:
    """Writer of one shard; one at a time, by a lock. `parts`: the folder as one task alone has it, closed."""

    def __init__(self, parts: FileFolder, shard: ShardName) -> None:
        self._parts, self._shard = parts, shard
        self._files = Shards(parts, shard)
        self._lock: int | None = None
        self._tidied = ""
        """Micro-batch of which nothing is there that an earlier attempt wrote and nobody confirmed."""
        self._begun = ""
        """Micro-batch that is noted as begun."""
        self._torn: list[Path] = []
        """Files of a write that failed."""

    def open(self, state: dict[str, Any] | None) -> None:
        """Removes what was not confirmed: of one task alone by `state`, and of the write that failed last. Raises
        Unavailable (locked, no room, no permission), ConfigError."""
        self.close()
        for attempt in Retrying(
            retry=retry_if_exception(_in_use), stop=stop_after_delay(PATIENCE), wait=wait_fixed(0.05), reraise=True
        ):
            with attempt:
                self._parts.open(state)
        self._parts.close()
        with alone(self._parts.folder, self.close):
            make_folders(self._files.marks)
            # Of a number, not of a division: a task of one that was forgotten is waited for, too.
            path = self._files.marks / f"{self._shard.number:02d}.lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files.none_left()
            # Invariant 4: as in FileFolder.open.
            self._parts.still_ours()
            for path in self._torn:
                self._parts.remove(path)
            self._torn = []

    def tidy(self, rows: Rows) -> None:
        """Removes what was never confirmed of the micro-batch of these rows. Raises Unavailable, Fenced."""
        if rows.sealed == self._tidied:
            return
        self._parts.still_ours()
        try:
            self._files.tidy(rows)
        except OSError as error:
            raise unavailable(self._parts.folder, error) from error
        self._tidied = rows.sealed

    def write(self, pieces: Sequence[Piece], rows: Rows) -> None:
        """Writes the pieces of these rows, durable on return. Raises Refused, Unavailable, Fenced."""
        name = f"{self._parts.name}-{rows.sealed}-{self._shard}-{rows.first:09d}-{rows.last:09d}.{self._parts.end}"
        folders = [self._parts.folder / piece.folder for piece in pieces]
        try:
            self._parts.check_names([folder / name for folder in folders])
            self.tidy(rows)
            if rows.sealed != self._begun:
                self._files.begin(rows.sealed)
                self._begun = rows.sealed
            self._parts.still_ours()
            self._torn = [folder / name for folder in folders]
            for folder, piece in zip(folders, pieces, strict=True):
                self._parts.put(folder, name, piece.write)
            self._torn = []
        except OSError as error:
            raise unavailable(self._parts.folder, error) from error

    def close(self) -> None:
        """Lets another attempt write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _in_use(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and isinstance(error.__cause__, BlockingIOError)
