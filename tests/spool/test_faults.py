"""What a full disk and a killed writer leave behind: nothing that could be taken for data."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.spool.manifest import StageManifest
from conduit_tasks.spool.spool import Spool
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
    died = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), moment], check=False, timeout=60)
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
