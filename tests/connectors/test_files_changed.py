"""What a `file` destination wrote and nobody confirmed is gone before its records are dead letters, and if its settings
change to one file, to files and back (SEMANTICS C10)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.connectors.file import one_file
from conduit_tasks.connectors.file.folder import FileFolder
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.micro_batch import dividing
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend.redrive import redrive
from tests.micro_batch.endings import end_at, lapse
from tests.micro_batch.harness import run_once, run_until_quiet, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: n}}
      - id: out
        type: destination
        plugin: file
        settings: {SETTINGS}
        delivery: {timeout: 1s, order-by: key, parallelism: TASKS, max-redeliveries: TRIES}
        dead-letter-queue: {window-size: 0}
"""
MANY = 'path: out, format: payload, files: many, rows-per-file: "2"'
ONE = "path: one.jsonl, format: payload"


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "1")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")


def written(home: Path, settings: str, tasks: int = 1, tries: int = 100) -> None:
    text = PIPELINE.replace("SETTINGS", settings).replace("TASKS", str(tasks)).replace("TRIES", str(tries))
    write_pipeline(home, "p", text)


def feed(home: Path, first: int, count: int) -> None:
    (home / "data").mkdir(exist_ok=True)
    with (home / "data/a.jsonl").open("a") as file:
        file.writelines(f'{{"n": {n}}}\n' for n in range(first, first + count))


def on() -> None:
    dividing.LEAST = 1
    run_until_quiet("p")


def dies(run: Callable[..., Any], *given: Any) -> None:
    with pytest.raises(ChildDied):
        in_child(run, *given)
    lapse()


def killed_at(at: int, operations: list[tuple[type, str]]) -> None:
    dividing.LEAST = 1
    end_at(operations, at)
    run_once("p", "killed")


def killed_behind(number: int) -> None:
    """A run that is killed at every attempt behind a file that holds this record, and before that is confirmed."""
    dividing.LEAST = 1
    put = FileFolder.put

    def and_die(self: FileFolder, folder: Path, name: str, write: Any) -> None:
        put(self, folder, name, write)
        if f'"n": {number}}}' in (folder / name).read_text():
            os.kill(os.getpid(), signal.SIGKILL)

    FileFolder.put = and_die  # type: ignore[method-assign]
    run_once("p", "killed")


def in_folder(home: Path) -> list[int]:
    assert not [path for path in (home / "out").rglob("*.tmp") if "-" in path.name]
    return sorted(n for path in (home / "out").glob("*.jsonl") for n in numbers(path))


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


@pytest.mark.proves("C10", "X2")
def test_a_record_that_becomes_a_dead_letter_is_not_in_a_file_that_an_earlier_attempt_wrote(
    home: Path, redis_server: Any
) -> None:
    """Given two tasks, and a record behind whose file the task dies each time, before it confirms it, then it is a dead
    letter in the end, in no file, and there once when it is redriven."""
    written(home, MANY, tasks=2, tries=1)
    feed(home, 0, 12)
    for _ in range(8):
        try:
            in_child(killed_behind, 4)
            break
        except ChildDied:
            lapse()
    in_child(on)
    broker = state("p")
    assert broker.dead_letters.count("out") == 1
    broker.close()
    assert in_folder(home) == [n for n in range(12) if n != 4]
    with opened("p", "redrive") as context:
        redrive(context, Selection(), "ada", wait=10.0)
    assert in_folder(home) == list(range(12))


@pytest.mark.proves("C10")
@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_settings_that_change_to_one_file_and_back_leave_nothing_that_was_not_confirmed(
    home: Path, redis_server: Any, confirmed: int
) -> None:
    """Given files of one task that was killed before it had confirmed one, then lines in one file, then files again."""
    written(home, MANY)
    feed(home, 0, 6)
    dies(killed_at, confirmed + 1, [(Deliveries, "confirm")])
    written(home, ONE)
    in_child(on)
    feed(home, 6, 2)
    written(home, MANY)
    in_child(on)
    found = sorted([*in_folder(home), *numbers(home / "one.jsonl")])
    # Nothing was confirmed: then it is not known that nothing was
    assert (found if confirmed else sorted(set(found))) == list(range(8))


def torn() -> None:
    append = one_file.OneFile._append

    def and_die(self: Any, data: memoryview, at: int) -> int:
        append(self, memoryview(bytes(data)[:14]), at)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    one_file.OneFile._append = and_die  # type: ignore[method-assign]
    run_once("p", "killed")


@pytest.mark.proves("C10")
@pytest.mark.parametrize("before", [0, 3])
def test_settings_that_change_to_files_and_back_leave_no_torn_line(home: Path, redis_server: Any, before: int) -> None:
    """Given one file of which a task was killed in the middle of a write, then files, then the one file again."""
    written(home, ONE)
    if before:
        feed(home, 0, before)
        in_child(on)
    feed(home, before, 3)
    dies(torn)
    assert (home / "one.jsonl").read_bytes()[-1:] != b"\n"
    written(home, MANY)
    in_child(on)
    feed(home, before + 3, 2)
    written(home, ONE)
    in_child(on)
    found = sorted([*in_folder(home), *numbers(home / "one.jsonl")])
    # Nothing was confirmed: then whole lines stay
    assert (found if before else sorted(set(found))) == list(range(before + 5))
    # And what the file goes on with is cut back as ever
    feed(home, before + 5, 2)
    dies(torn)
    in_child(on)
    again = sorted([*in_folder(home), *numbers(home / "one.jsonl")])
    assert again == [*found, before + 5, before + 6]


@pytest.mark.proves("C10")
def test_what_was_confirmed_of_one_file_says_nothing_of_another(home: Path, redis_server: Any) -> None:
    """Given one file, then files in a folder, then one file of another name, which has a line of its own."""
    written(home, ONE)
    feed(home, 0, 3)
    in_child(on)
    written(home, MANY)
    feed(home, 3, 2)
    in_child(on)
    (home / "two.jsonl").write_text('{"n": -1}\n')
    written(home, ONE.replace("one", "two"))
    feed(home, 5, 2)
    in_child(on)
    assert numbers(home / "two.jsonl") == [-1, 5, 6]
    assert [*numbers(home / "one.jsonl"), *in_folder(home)] == list(range(5))
