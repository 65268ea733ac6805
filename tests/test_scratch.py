"""Where tests write to: a folder in memory, of which nothing is left."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from tests import scratch


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"MEMORY": tmp_path, "NEEDED": 0, "ROOM": 0}.items():
        monkeypatch.setattr(scratch, name, value)
    # Set first, so that it is put back
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    return tmp_path


def test_what_killed_tests_have_left_is_removed_and_not_what_others_write_to(memory: Path) -> None:
    left, taken, foreign = (memory / name for name in ("conduit-tests-a", "conduit-tests-b", "another"))
    for folder in (left, taken, foreign):
        folder.mkdir()
    held = os.open(taken, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    made = scratch.begin()
    assert made is not None
    assert set(memory.iterdir()) == {taken, foreign, made}
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(made)
    os.close(held)


@pytest.mark.parametrize("name", ["NEEDED", "ROOM"])
def test_without_room_in_memory_tests_write_where_they_would(
    name: str, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, name, 1 << 60)
    assert scratch.begin() is None
    assert "TMPDIR" not in os.environ
    assert not list(memory.iterdir())


def test_a_folder_that_somebody_names_is_taken(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(memory))
    assert scratch.begin() is None
