"""`conduit connectors test`: a line per check, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Conduit


def test_the_command_prints_a_line_per_check_and_ends_with_what_it_found(folder: Path, conduit: Conduit) -> None:
    (folder / "s.yaml").write_text("source: {path: e.jsonl, format: jsonl}\ndestination: {path: e.jsonl}\n")
    done = conduit("connectors", "test", "file", "--settings", "s.yaml", "--records", "10")
    assert done.exit_code == 0, done.output
    assert "✓  source       a slice that is read again gives the same" in done.stdout
    # When the source is asked alone, and finds a torn line
    with (folder / "e.jsonl").open("a") as file:
        file.write("{torn")
    done = conduit("connectors", "test", "file", "--source", "path=e.jsonl", "--source", "settle=0s", "--format=json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["passed"] is True
    done = conduit("connectors", "test", "file", "--source", "path=absent.jsonl")
    assert done.exit_code == 1
    assert "✗" in done.stdout
    assert "absent.jsonl does not exist" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "there is no connector 'nope'"),
        (("file", "--set", "pth=x"), "has no option 'pth'"),
        (("file", "--set", "path"), "'path' is not of the form KEY=VALUE"),
        (("file", "--settings", "absent.yaml"), "absent.yaml cannot be read"),
        (("file", "--settings", "bad.yaml"), "THE_PATH is not set"),
        (("file", "--settings", "list.yaml"), "write one map"),
        (("file", "--settings", "deep.yaml"), "'sink' must be one of"),
    ],
)
def test_the_command_says_why_nothing_was_tried(
    folder: Path, conduit: Conduit, words: tuple[str, ...], message: str
) -> None:
    (folder / "bad.yaml").write_text("path: ${THE_PATH}\n")
    (folder / "list.yaml").write_text("- path\n")
    (folder / "deep.yaml").write_text("source: {path: x}\nsink: {path: y}\n")
    done = conduit("connectors", "test", *words)
    assert done.exit_code == 2
    assert message in done.stderr
