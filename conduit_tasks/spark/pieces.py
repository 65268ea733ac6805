"""Pieces of a job in Python workers of a Connect server, and the locks by which a worker shows that it is at work."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conduit_tasks import logs
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa


def run_pieces(spark: Any, work: Pieces) -> list[Any]:
    """Runs the pieces as one job. Returns their answers, in order."""
    count = len(work.pieces)
    table = spark.range(0, count, 1, count).mapInArrow(work, "piece bigint, answer binary").toArrow()
    return _answers(table, count)


@dataclass(frozen=True)
class Pieces:
    """Work of a Python worker for one task: answers each of its pieces with a pickle; picklable itself."""

    function: Callable[[Any], Any]
    pieces: list[Any]
    lock: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import cloudpickle

        with _at(self.lock):
            for batch in batches:
                for piece in batch.column(0).to_pylist():
                    with logs.kept() as lines:
                        made = self.function(self.pieces[piece])
                    answer = cloudpickle.dumps((made, list(lines)))
                    yield pa.record_batch([pa.array([piece]), pa.array([answer], pa.binary())], ["piece", "answer"])


def _answers(table: pa.Table, count: int) -> list[Any]:
    """Returns the answers in the order of the pieces. Raises InvariantBroken unless each is there exactly once."""
    from pyspark import cloudpickle

    answers = dict(zip(table.column("piece").to_pylist(), table.column("answer").to_pylist()))
    if sorted(answers) != list(range(count)) or table.num_rows != count:
        raise InvariantBroken(f"invariant 10: {count} tasks were started, and {table.num_rows} answered")
    made = []
    for piece in range(count):
        answer, lines = cloudpickle.loads(answers[piece])
        made.append(answer)
        # The worker's stderr goes to the server's log; this copies its lines to the task's log.
        sys.stderr.writelines(f"{line}\n" for line in lines)
    return made


@contextmanager
def _at(lock: str | None) -> Iterator[None]:
    """Holds a shared lock on the file while the block runs, which shows that a worker is at work; children of the
    process hold it, too."""
    if lock is None:
        yield
        return
    number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_SH)
        yield
    finally:
        os.close(number)


def at_work(pipeline: str, node: str) -> Path:
    """Returns the file on which this node's workers on this machine hold a lock."""
    folder = settings().home.resolve() / ".conduit" / "at-work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(f"{pipeline}\0{node}".encode()).hexdigest()[:32]


def nobody_at(lock: Path) -> bool:
    """Tells whether no worker holds the lock."""
    number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(number)
