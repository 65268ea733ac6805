"""What a full disk and a killed writer leave behind: nothing that could be taken for data."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.spool.checkpoint import Checkpoint, Mark
from conduit_tasks.spool.manifest import StageManifest
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.store import LocalStore
from tests.spool.disks import small_disk
from tests.spool.rows import incompressible, rows

WRITER = """
import os, signal, sys
from conduit_tasks.spool import store
from conduit_tasks.spool.spool import Spool
from tests.spool.rows import rows

target = {"write": (os, "fsync"), "rename": (store.Path, "replace"), "folder": (store, "sync_folder")}[sys.argv[2]]
part = Spool(sys.argv[1]).writer("p", 1, "sources.in", 7).part(0)
part.write(rows(1000))
setattr(*target, lambda *a: os.kill(os.getpid(), signal.SIGKILL))
part.close()
"""


@pytest.mark.proves("C10", "I6")
@pytest.mark.parametrize("moment", ["write", "rename"])
def test_a_writer_killed_before_the_rename_leaves_nothing_visible(tmp_path: Path, moment: str) -> None:
    # Given a folder, so that only the file's own fsync and rename are left
    spool = Spool(str(tmp_path))
    (tmp_path / "p/0000000001/sources.in-7").mkdir(parents=True)
    # When the writer is killed there
    died = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), moment], check=False, timeout=240)
    # Then no part is seen, and what it left goes with the micro-batch
    assert died.returncode == -signal.SIGKILL
    names = [n for n, _ in spool.store.names("p/0000000001/sources.in-7")]
    assert [n for n in names if not n.startswith(".")] == []
    assert len(names) == 1, "the file aside is there: the kill came in time"
    spool.collect("p", 1)
    assert not (tmp_path / "p/0000000001").exists()


@pytest.mark.proves("C10")
def test_a_full_disk_is_told_clearly_leaves_no_file_and_passes_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        spool = Spool(str(disk.path))
        batch = incompressible(500)

        def write() -> int:
            part = spool.writer("p", 1, "sources.in", 7).part(0)
            for start in range(0, 500, 50):
                part.write(batch.slice(start, 50))
            file = part.close()
            return pa.Table.from_batches(spool.read(file, verify=True)).num_rows

        # Given less room than the rows need, when they are written
        with pytest.raises(SpoolError, match=r"no room for .*part-00000.*free space"):
            write()
        # Then nothing is left; and with room it works
        assert spool.store.names("p/0000000001/sources.in-7") == []
        disk.grow()
        assert write() == 500


def test_a_manifest_that_finds_no_room_is_not_there_in_part(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        spool = Spool(str(disk.path))
        manifest = StageManifest("p", 1, "sources.in", 7, [], matched={f"d{i}": i for i in range(100_000)})
        with pytest.raises(SpoolError, match="no room"):
            spool.write_stage(manifest)
        assert spool.store.names("p/0000000001") == []
        disk.grow()
        assert spool.read_stage(spool.write_stage(manifest)) == manifest


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    part = Spool(str(tmp_path / "file")).writer("p", 1, "sources.in", 7)
    with pytest.raises(SpoolError, match=r"part-00000.*cannot be written"):
        part.part(0).write(rows(1))


ASKED: dict[str, Callable[[Spool], Any]] = {
    "micro-batches": lambda spool: spool.micro_batches("p"),
    "the seal": lambda spool: spool.sealed("p", 1),
    "a listing": lambda spool: spool.listing(spool.uri("p/x")),
    "marks": lambda spool: Checkpoint(spool, "p").read(),
    "a mark": lambda spool: Checkpoint(spool, "p").write(Mark("acks.in", 7, 0, 0)),
    "ledger": lambda spool: Ledger(spool, "p").read(),
    "collection": lambda spool: spool.collect("p", 1),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_folder_that_cannot_be_listed_is_named_whoever_asks(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a mount that answers no listing
    def names(self: LocalStore, folder: str) -> list[tuple[str, bool]]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LocalStore, "names", names)
    # Then it is the project's own error, so that who can waits and tries again
    with pytest.raises(SpoolError, match=r"/p.* cannot be (listed|removed).*Input/output error"):
        ASKED[what](Spool(str(tmp_path)))


def test_an_older_mark_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Checkpoint(Spool(str(tmp_path)), "p")
    marks.write(Mark("acks.in", 7, 0, 0))

    def delete(self: LocalStore, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalStore, "delete", delete)
    with pytest.raises(SpoolError, match=r"acks.in-7.json cannot be removed"):
        marks.write(Mark("acks.in", 8, 0, 0))
    # And the new one is there
    assert marks.read()["acks.in"].token == 8
