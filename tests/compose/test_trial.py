"""What the trial of the stack tells of its engine, with a stand-in for the engine's command line."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from conduit_tasks.trial import kills
from conduit_tasks.trial.engine import Engine, TrialError, until
from conduit_tasks.trial.images import link_or_copy


def engine(folder: Path, answer: str, code: int = 0) -> Engine:
    """One whose compose prints `answer` to everything."""
    script = folder / "compose.py"
    script.write_text(f"import sys\nprint({answer!r})\nprint('as it said', file=sys.stderr)\nsys.exit({code})\n")
    return Engine(folder, compose_command=[sys.executable, str(script)])


def test_a_command_that_fails_says_why_and_a_missing_one_too(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match=r"ended with 3: as it said"):
        engine(tmp_path, "", 3).compose("up")
    with pytest.raises(TrialError, match="no-such-command is not there"):
        Engine(tmp_path).run(["no-such-command"], timeout=5)


def test_the_nodes_at_work_are_those_that_have_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = [
        "12 python /opt/app.py --pipeline flights --node destinations.archive --run r",
        "13 java SparkSubmit /opt/app.py --pipeline flights --node destinations.archive --run r",
        "14 python /opt/app.py --pipeline events --node sources.web --run r",
        "15 airflow scheduler",
    ]
    one = engine(tmp_path, "")
    monkeypatch.setattr(one, "container", lambda _: {"Id": "c"})
    monkeypatch.setattr(one, "docker", lambda *_: "\n".join(drivers))
    assert kills.at_work(one) == ["destinations.archive"]


def test_a_scheduler_that_was_only_just_killed_has_none(tmp_path: Path) -> None:
    assert kills.at_work(engine(tmp_path, "", 1)) == []


def test_a_demo_that_ends_before_the_kills_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="before spark-worker-2 could be killed"):
        kills.watch(engine(tmp_path, "", 1), lambda: True, print)


def test_waiting_ends_with_what_was_waited_for() -> None:
    with pytest.raises(TrialError, match="for the moon"):
        until(lambda: False, "the moon", 0.05, 0.01)


def test_jars_are_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").stat().st_ino == (tmp_path / "a").stat().st_ino


@pytest.mark.parametrize("name", ["conduit_tasks.trial", "conduit_tasks.stack.trial"])
def test_the_trial_is_started_by_either_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trial", "down"])
    monkeypatch.delitem(sys.modules, "conduit_tasks.trial.__main__", raising=False)
    with pytest.raises(SystemExit, match="call this in a checkout of the project"):
        runpy.run_module(name, run_name="__main__")
