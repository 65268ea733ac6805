"""The disk full under the spool and under a file destination: whole lines only, and nothing lost."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import SpoolError, Unavailable
from conduit_tasks.settings import forget
from tests.faults.parts import account, drive
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline
from tests.spool.disks import MIB, SmallDisk, small_disk

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: small, type: destination, plugin: file, settings: {path: "DISK/small.jsonl", format: payload}}
      - {id: other, type: destination, plugin: file, settings: {path: out/other.jsonl, format: payload}}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of one megabyte. Without the right to mount one, a limit on file sizes stands for it, but not in CI."""
    with small_disk(tmp_path) as made:
        assert made.mounted or os.environ.get("CI") != "true", "CI must be allowed to mount a tmpfs"
        yield made


def large(home: Path, start: int, count: int) -> list[dict[str, Any]]:
    """Events of a kilobyte each that no compression makes smaller."""
    dice = random.Random(start)
    rows = [{"n": n, "noise": dice.randbytes(500).hex()} for n in range(start, start + count)]
    (home / "data").mkdir(exist_ok=True)
    with (home / "data/a.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


@pytest.mark.proves("C9", "C10", "T4", "T6")
def test_a_full_disk_under_a_file_leaves_whole_lines_and_the_file_goes_on_once_there_is_room(
    quick: Path, disk: SmallDisk, acks: list[dict[str, Any]]
) -> None:
    # Given a file on a disk that is too small for what comes
    write_pipeline(quick, "p", PIPELINE.replace("DISK", str(disk.path)))
    rows = large(quick, 0, 500)
    drive()
    rows += large(quick, 500, 1000)
    # When two runs fill the disk
    said = [run_once("p", f"full-{n}") for n in range(2)]
    # Then they say so, and the file holds whole lines only: what is confirmed
    for run in said:
        assert isinstance(run["destinations.small"], Unavailable)
        assert "small.jsonl cannot be written" in str(run["destinations.small"])
        assert "free space" in str(run["destinations.small"])
    assert payloads(disk.path / "small.jsonl") == rows[:500]
    # And the other destination has everything
    assert payloads(quick / "out/other.jsonl") == rows
    # When there is room again
    disk.grow()
    drive()
    # Then nothing is missing, torn or there twice
    assert payloads(disk.path / "small.jsonl") == rows
    assert account()["destinations"]["small"]["delivered"] == 1500
    assert len(acks) == 2


@pytest.mark.proves("C10", "T1", "I3", "I6")
def test_a_full_disk_under_the_spool_seals_nothing_half_and_goes_on_once_there_is_room(
    quick: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, acks: list[dict[str, Any]]
) -> None:
    # Given a spool on a small disk
    monkeypatch.setenv("CONDUIT_SPOOL", str(disk.path / "spool"))
    forget()
    write_pipeline(quick, "p", PIPELINE.replace("DISK/", "out/"))
    rows = large(quick, 0, 3000)
    # When runs fill it
    for n in range(2):
        with pytest.raises(SpoolError, match="spool"):
            run_once("p", f"full-{n}")
        # Then nothing is sealed, delivered or left lying about
        broker = state("p")
        assert (broker.micro_batches.latest_sealed(), broker.positions.acked("in")) == (0, {})
        broker.close()
        assert not (quick / "out/small.jsonl").exists()
        used = sum(path.stat().st_size for path in disk.path.rglob("*") if path.is_file())
        assert used < MIB // 2, "what could not be finished is removed"
    # When there is room again
    disk.grow()
    drive()
    # Then nothing is missing or there twice
    assert payloads(quick / "out/small.jsonl") == payloads(quick / "out/other.jsonl") == rows
    account()
    assert len(acks) == 1
