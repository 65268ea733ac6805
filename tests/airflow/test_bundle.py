"""DAG files are parsed again if a pipeline file has changed, not every few seconds."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from conduit_tasks.airflow.bundle import PipelineBundle
from conduit_tasks.stack.starter import DAGS, ERRORS
from tests.micro_batch.harness import write_pipeline

LONG_AGO = 1_000_000_000.0
FILES = {"conduit.py": DAGS, "ours/conduit_errors.py": ERRORS, "own.py": "from airflow.sdk import DAG\n"}


@pytest.fixture
def bundle(home: Path) -> PipelineBundle:
    for name, text in FILES.items():
        file = home / "dags" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    write_pipeline(home, "p", 'version: "2.2"\n')
    made = PipelineBundle(name="dags-folder", path=str(home / "dags"))
    made.refresh()
    return made


def touched(bundle: PipelineBundle) -> set[str]:
    """What a refresh touches."""
    for name in FILES:
        os.utime(bundle.path / name, (LONG_AGO, LONG_AGO))
    bundle.refresh()
    return {name for name in FILES if (bundle.path / name).stat().st_mtime != LONG_AGO}


OURS = {"conduit.py", "ours/conduit_errors.py"}


def test_files_of_ours_are_young_after_a_pipeline_file_has_come_changed_or_gone(
    bundle: PipelineBundle, home: Path
) -> None:
    folder = home / "include" / "pipelines"

    def change(name: str) -> None:
        side = home / "side"
        side.write_text((folder / "p.yaml").read_text() + "\n# changed\n")
        side.rename(folder / name)

    for make in (
        lambda: change("p.yaml"),
        lambda: change("q.yml"),
        (folder / "q.yml").unlink,
        lambda: (folder / "p.yaml").rename(folder / "r.yaml"),
    ):
        assert touched(bundle) == set()
        make()
        # And once more, for the parse that was under way
        assert [touched(bundle), touched(bundle), touched(bundle)] == [OURS, OURS, set()]


def test_what_is_no_pipeline_file_touches_nothing(bundle: PipelineBundle, home: Path) -> None:
    (home / "include" / "pipelines" / "p.test.yaml").write_text("cases: []")
    (home / "include" / "code.py").write_text("")
    assert touched(bundle) == set()


def test_a_file_that_cannot_be_touched_is_named(
    bundle: PipelineBundle, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a volume that is mounted to be read: Airflow parses it after `min_file_process_interval`."""

    def refuse(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    (home / "include" / "pipelines" / "q.yaml").write_text("")
    monkeypatch.setattr(os, "utime", refuse)
    with caplog.at_level(logging.WARNING):
        bundle.refresh()
    assert "conduit.py cannot be touched: [Errno 30] Read-only file system" in caplog.text
