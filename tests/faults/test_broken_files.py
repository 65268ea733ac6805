"""A corrupt input line, an unknown plugin, a missing variable: the message says where, and others are unaffected."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.errors import ConduitError
from conduit_tasks.pipeline.load import load_folder
from tests.faults.parts import account, dead_letters, drive, events
from tests.micro_batch.harness import payloads, run_once, write_pipeline

GOOD = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {window-size: 0}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: file, type: destination, plugin: file, settings: {path: "out/file.jsonl", format: payload}}
"""


@pytest.mark.proves("C5", "C10", "C14", "I10")
def test_corrupt_lines_are_dead_lettered_with_their_bytes_and_position_and_the_rest_flows(quick: Path) -> None:
    # Given lines that are torn, no JSON, not UTF-8 and no object, between good ones
    write_pipeline(quick, "p", GOOD)
    rows = events(quick / "data", 10)
    bad = [b'{"n": 1, "torn', b"not json", b'{"n": "\xff\xfe"}', b"[1, 2]"]
    with (quick / "data/a.jsonl").open("ab") as file:
        offset = file.tell()
        file.write(b"\n".join(bad) + b"\n")
    rows += events(quick / "data", 10, 10)
    # When it runs
    drive()
    # Then the good ones arrive in order, and each bad one is a dead letter that says where it stood
    assert payloads(quick / "out/file.jsonl") == rows
    letters = dead_letters(destination="_pipeline")
    assert [letter["seq"] for letter in letters] == [10, 11, 12, 13]
    assert {letter["node"] for letter in letters} == {"sources.in"}
    assert letters[0]["position"] == f"data/a.jsonl:{offset}".encode()
    assert letters[1]["position"] == f"data/a.jsonl:{offset + len(bad[0]) + 1}".encode()
    found = account()
    assert (found["totals"]["read"], found["totals"]["nacked"]) == (24, 4)
    assert found["destinations"]["file"]["delivered"] == 20


BROKEN = {
    "an unknown connector": (GOOD.replace("destination, plugin: file", "destination, plugin: flie"), "flie", "file"),
    "an unknown processor": (GOOD + "    processors: [{id: x, plugin: feild.set}]\n", "feild.set", "field.set"),
    "a missing variable": (GOOD.replace('"out/file.jsonl"', '"${NOWHERE_SET}/f"'), "NOWHERE_SET", "export NOWHERE_SET"),
}  # fmt: skip


def ended(pipeline: str) -> str:
    """What a run of it ends with: the first error."""
    try:
        return next(str(said) for said in run_once(pipeline).values() if isinstance(said, ConduitError))
    except ConduitError as error:
        return str(error)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_pipeline_file_says_where_it_is_broken_and_breaks_nothing_else(case: str, quick: Path) -> None:
    # Given a good pipeline, and another one that is broken
    text, named, hint = BROKEN[case]
    broken = text.replace("id: p", "id: broken").replace("out/", "out-broken/")
    line = next(n for n, words in enumerate(broken.splitlines(), 1) if named in words)
    write_pipeline(quick, "good", GOOD)
    write_pipeline(quick, "broken", broken)
    rows = events(quick / "data", 10)
    # When both are validated
    findings = load_folder(quick / "include/pipelines", plugins=True).errors
    # Then the finding has file, line, what is wrong and what to do
    assert [(f.pipeline, Path(f.file).name, f.line) for f in findings] == [("broken", "broken.yaml", line)]
    assert named in findings[0].message
    assert hint in f"{findings[0].message} {findings[0].hint}"
    # When both are run, then the broken one names the fault and delivers nothing, and the other one is unaffected
    said = ended("broken")
    assert named in said
    assert hint in said
    assert not (quick / "out-broken").exists()
    run_once("p")
    assert payloads(quick / "out/file.jsonl") == rows
