"""A record is tried in a process of its own: whatever its processors do, the caller goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.operate import apart
from conduit_tasks.operate.apart import RECORD, tried
from conduit_tasks.operate.ask import Ask
from conduit_tasks.settings import forget

PIPELINE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.jsonl}}
      - {id: out, type: destination, plugin: log}
    processors:
      - {id: mark, plugin: field.set, settings: {field: .Metadata.mark, value: "1"}}
      - {id: stay, plugin: python, settings: {call: "include.code:stay"}, condition: '{{ eq .Metadata.do "stay" }}'}
      - {id: ask, plugin: python, settings: {call: "include.code:ask"}, condition: '{{ eq .Metadata.do "ask" }}'}
      - {id: die, plugin: python, settings: {call: "include.code:die"}, condition: '{{ eq .Metadata.do "die" }}'}
      - {id: shout, plugin: python, settings: {call: "include.code:shout"}, condition: '{{ eq .Metadata.do "shout" }}'}
      - {id: eat, plugin: python, settings: {call: "include.code:eat"}, condition: '{{ eq .Metadata.do "eat" }}'}
"""
CODE = """\
import os, socket, time

def stay(record):
    while True:
        time.sleep(60)

def ask(record):
    print("said to stdout")
    record.metadata["half"] = "done"
    socket.create_connection(("localhost", int(os.environ["PORT"])), timeout=10).close()
    return record

def die(record):
    os._exit(3)

def shout(record):
    for n in range(1_000):
        print("y" * (1 << 20), n, flush=True)
    return record

def eat(record):
    record.after = {"x": bytearray(64 << 30)}
    return record
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    (tmp_path / "include" / "__init__.py").touch()
    (tmp_path / "include" / "code.py").write_text(CODE)
    (tmp_path / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    forget()
    yield tmp_path
    forget()


def ask(do: str = "", *, calls: bool = False) -> Ask:
    return Ask("p", record=f'{{"metadata": {{"do": "{do}"}}}}', calls=calls)


def test_what_does_not_come_to_an_end_is_ended_and_the_step_is_named(folder: Path) -> None:
    # The seconds are for the start of Python, on a machine that does much else
    answer = tried(ask("stay"), 12)
    assert answer["error"] is None
    assert [step["outcome"] for step in answer["steps"]] == ["changed", "failed"]
    last = answer["steps"][-1]
    assert (last["error"], last["error_class"]) == ("stay took longer than 12 s", "timeout")
    assert last["before"][0]["metadata"]["mark"] == "1"


@pytest.mark.slow
def test_a_function_that_ends_its_process_or_takes_all_memory_fails_the_step_alone(folder: Path) -> None:
    last = tried(ask("die"))["steps"][-1]
    assert (last["error"], last["error_class"]) == ("die ended its process (exit code 3)", "killed its worker")
    last = tried(ask("eat"))["steps"][-1]
    assert (last["outcome"], last["error"]) == ("failed", "MemoryError: ")


@pytest.mark.slow
def test_calls_over_the_network_are_left_out_unless_they_are_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        server.settimeout(0.0)
        # When they are not allowed, nothing of what the function did goes on
        answer = tried(ask("ask"))
        left = next(step for step in answer["steps"] if step["processor"] == "ask")
        assert (left["outcome"], left["after"]) == ("left out", left["before"])
        assert left["why"].startswith("tried to reach the network")
        with pytest.raises(BlockingIOError):
            server.accept()
        # When they are, it connects, and what it prints gets nowhere
        answer = tried(ask("ask", calls=True))
        done = next(step for step in answer["steps"] if step["processor"] == "ask")
        assert (done["outcome"], done["after"][0]["metadata"]["half"]) == ("changed", "done")
        server.accept()[0].close()


@pytest.mark.slow
def test_a_function_that_prints_without_end_fails_its_step_and_fills_nobodys_memory(folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last = tried(ask("shout"))["steps"][-1]
    assert (last["processor"], last["outcome"]) == ("shout", "failed")
    assert "File too large" in last["error"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_what_is_too_large_is_refused_before_a_process_is_started(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the record has more than 4 MiB"):
        tried(Ask("p", record="x" * (RECORD + 1)))
    with pytest.raises(ConfigError, match="the text of the file has more than 4 MiB"):
        tried(Ask("p", record="{}", text="x" * (RECORD + 1)))


def test_a_question_that_cannot_be_answered_is_an_error_with_the_findings_of_the_file() -> None:
    said = b'{"findings": [{"code": "E101"}]}\n{"error": "it has an unknown key"}\n{"step": "half'
    answer = apart._answer(said, "", False)
    assert (answer["findings"], answer["error"], answer["steps"]) == ([{"code": "E101"}], "it has an unknown key", [])


def test_of_a_process_that_ended_before_it_told_of_anything_its_last_words_are_for_who_may_run_any_code() -> None:
    said = b"Traceback\nModuleNotFoundError: No module named 'x'\n"
    assert apart._answer(b"", f"ended ({apart._how(1, said, True)})", False)["error"] == (
        "the trial ended (ModuleNotFoundError: No module named 'x')"
    )
    assert apart._how(1, said, False) == "ModuleNotFoundError"
    assert apart._how(1, b"x.y.Error\n", False) == "x.y.Error"
    assert apart._how(1, b"the card 4111 1111", False) == "exit code 1"
    assert apart._how(-9, said, False) == "SIGKILL"
