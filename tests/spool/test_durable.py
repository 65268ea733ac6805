"""What a process remembers of folders that it has made durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.spool import durable


def test_no_more_folders_are_remembered_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MOST", 5)
    monkeypatch.setattr(durable, "_durable", set())
    for n in range(20):
        durable.make_folders(tmp_path / f"{n}")
        assert (tmp_path / f"{n}").is_dir()
        assert len(durable._durable) <= 5
