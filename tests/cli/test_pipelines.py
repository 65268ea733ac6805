"""`conduit pipelines test`: unit tests of pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conduit_tasks.pipeline.load import load_folder
from tests.cli.conftest import Conduit

ROOT = Path(__file__).resolve().parent.parent.parent

PIPELINE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: in
        type: source
        plugin: file
        settings:
          path: in.jsonl
          format: jsonl
          cloudevents.type: 'made.{{ .Payload.After.kind }}'
          cloudevents.team: t
        processors:
          - id: legs
            plugin: split
            settings: {field: .Payload.After.legs}
            condition: '{{ hasKey .Payload.After "legs" }}'
      - id: other
        type: source
        plugin: file
        settings: {path: other.txt}
      - id: all
        type: destination
        plugin: log
        processors:
          - {id: once, plugin: dedupe, settings: {key: .Payload.After.kind}, condition: '{{ eq .Operation "update" }}'}
          - id: bad
            plugin: error
            settings: {message: "no {{ .Payload.After.kind }}"}
            condition: '{{ eq .Metadata.bad "1" }}'
      - id: made
        type: destination
        plugin: log
        trigger: {filters: [{prefix: {type: made.}}, {exact: {team: t}}]}
        processors:
          - {id: mark, plugin: field.set, settings: {field: .Payload.After.mark, value: "yes"}}
    processors:
      - {id: drop, plugin: filter, condition: '{{ eq .Metadata.drop "1" }}'}
"""


def files(folder: Path, tests: str, pipeline: str = PIPELINE) -> Path:
    (folder / "p.test.yaml").write_text(tests)
    (folder / "p.yaml").write_text(pipeline)
    return folder / "p.yaml"


GOOD = """\
tests:
  - name: triggers and sections
    input:
      in:
        - {payload: {after: {kind: a}}}
        - {payload: {after: {kind: b, legs: [1, 2]}}, metadata: {drop: "0"}}
        - {payload: {after: {kind: c}}, metadata: {drop: "1"}}
      other:
        - {payload: {after: raw}, position: eA==}
    expect:
      made:
        - {payload: {after: {kind: a, mark: "yes"}}, metadata: {cloudevents.type: made.a, drop: null}}
        - {payload: {after: {kind: b, legs: 1, mark: "yes"}}, metadata: {split.index: "0"}}
        - {payload: {after: {kind: b, legs: 2, mark: "yes"}}}
      all:
        - {payload: {after: {kind: a}}}
        - {operation: create}
        - {operation: create}
        - {payload: {after: raw}, position: eA==}
  - name: one that fails is nacked whole, and dedupe asks no Redis
    input:
      in:
        - {operation: update, payload: {after: {kind: a}}}
        - {operation: update, payload: {after: {kind: a}}}
        - {metadata: {bad: "1"}, payload: {after: {kind: b, legs: [1, 2]}}}
    expect: {all: [{operation: update}]}
    nacks: [{node: destinations.all, processor: bad, message: no b, class: processor}]
"""


def test_what_is_as_expected_passes(conduit: Conduit, folder: Path) -> None:
    done = conduit("pipelines", "test", files(folder, GOOD))
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["passed  p: triggers and sections", "passed  p: one that fails is nacked whole, and dedupe asks no Redis"],
    )
    assert conduit("pipelines", "test", folder / "p.test.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('kind: a, mark: "yes"', 'kind: a, mark: "no"', '-      "mark": "no"'),
        ("drop: null", 'drop: "0"', '+    "drop": null'),
        (
            "        - {operation: create}\n        - {operation: create}\n",
            "        - {operation: create}\n",
            "all: 3 expected, 4 arrived",
        ),
        ("nacks: [{", "nacks: [{}, {", "nacked:"),
        ("message: no b", "message: no c", '+    "message": "no b"'),
        ("    nacks: [", "    # [", "nacked:"),
    ],
)
def test_what_is_not_is_shown_as_a_difference(was: str, now: str, says: str, conduit: Conduit, folder: Path) -> None:
    assert GOOD.replace(was, now) != GOOD
    done = conduit("pipelines", "test", files(folder, GOOD.replace(was, now, 1)))
    assert done.exit_code == 1
    assert "FAILED  p:" in done.stdout
    assert says in done.stdout
    answered = json.loads(conduit("pipelines", "test", folder / "p.yaml", "--format", "json").stdout)
    assert sorted(each["passed"] for each in answered) == [False, True]


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("tests: [", "cannot be read"),
        ("tests: []", "write a list of tests"),
        ("tests: [{name: x, input: {}}]", "test 1: it expects nothing"),
        ("tests: [{inptu: {}, expect: {all: []}}]", "test 1: a test has no inptu"),
        ("tests: [{input: {absent: []}, expect: {all: []}}]", "input has no absent; it has in, other"),
        ("tests: [{input: [], expect: {all: []}}]", "input must be a map"),
        ("tests: [{input: {}, expect: {absent: []}}]", "expect has no absent"),
        ("tests: [{input: {}, expect: {all: 1}}]", "expect.all must be a list"),
        ("tests: [{input: {in: [{operation: upsert}]}, expect: {all: []}}]", "input.in: operation is 'upsert'"),
        ("tests: [{input: {in: [{payload: {after: 1}}]}, expect: {all: []}}]", "input.in: key and payload must be"),
        ("tests: [{input: {in: [{position: '?'}]}, expect: {all: []}}]", "position must be base64"),
        ("tests: [{pipeline: q, input: {}, expect: {all: []}}]", "pipeline must be one of p"),
        ("tests: [{input: {}, nacks: [{why: x}]}]", "nacks has no why"),
    ],
)
def test_a_file_that_is_wrong_ends_with_2_and_says_where(tests: str, says: str, conduit: Conduit, folder: Path) -> None:
    done = conduit("pipelines", "test", files(folder, tests))
    assert done.exit_code == 2
    assert says in done.stderr


def test_files_that_are_not_there_end_with_2(conduit: Conduit, folder: Path) -> None:
    file = files(folder, GOOD)
    (folder / "p.test.yaml").rename(folder / "q.test.yaml")
    assert "p.test.yaml beside" in conduit("pipelines", "test", file).stderr
    assert "no pipeline file q.yaml" in conduit("pipelines", "test", folder / "q.test.yaml").stderr
    assert conduit("pipelines", "test", file, "--tests", folder / "q.test.yaml").exit_code == 0
    done = conduit("pipelines", "test", files(folder, GOOD, PIPELINE.replace("plugin: split", "plugin: splt")))
    assert (done.exit_code, "splt" in done.stderr) == (2, True)


@pytest.mark.parametrize(("pipeline", "tests"), [("p.YML", "p.test.yaml"), ("p.yaml", "p.Test.YML")])
def test_names_are_the_same_whatever_their_case(conduit: Conduit, folder: Path, pipeline: str, tests: str) -> None:
    files(folder, GOOD).rename(folder / pipeline)
    (folder / "p.test.yaml").rename(folder / tests)
    for given in (pipeline, tests):
        assert conduit("pipelines", "test", folder / given).exit_code == 0


def test_tests_are_no_pipelines(folder: Path) -> None:
    files(folder, GOOD)
    result = load_folder(folder)
    assert ([p.id for p in result.pipelines], result.findings) == (["p"], [])


def test_the_demos_own_tests_pass(conduit: Conduit) -> None:
    done = conduit("pipelines", "test", ROOT / "include" / "pipelines" / "flights.yaml")
    assert done.exit_code == 0, done.stdout


FRAMES = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.jsonl, format: jsonl}}
      - id: all
        type: destination
        plugin: log
        processors:
          - {id: own, plugin: python, settings: {call: "include.frames:twice", mode: frame}}
    processors:
      - {id: first, plugin: field.set, settings: {field: .Metadata.first, value: "yes"}}
      - id: late
        plugin: sql
        settings:
          schema: n STRING
          query: >-
            SELECT * EXCEPT (metadata), map_concat(metadata, map('n', string(int(after.n)))) AS metadata
            FROM records WHERE after.n <> '0'
      - {id: last, plugin: field.set, settings: {field: .Metadata.last, value: "yes"}}
"""

FRAME_TESTS = """\
tests:
  - name: frames between records
    input:
      - payload: {after: {n: "0"}}
      - payload: {after: {n: "7"}}
      - payload: {after: {n: soon}}
    expect:
      all:
        - {metadata: {n: "7", first: "yes", last: "yes"}, payload: {after: {n: "7"}}}
        - {metadata: {n: "7", first: "yes", last: "yes"}, payload: {after: {n: "7"}}}
    nacks: [{node: processors, processor: late, class: processor, message: CAST_INVALID_INPUT}]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_what_sees_dataframes_runs_in_spark(conduit: Conduit, folder: Path) -> None:
    # Given a statement that filters, marks and fails on one record, and a function that repeats records
    (folder / "include").mkdir()
    (folder / "include" / "frames.py").write_text("def twice(spark, df):\n    return df.unionAll(df)\n")
    # When it is tested
    done = conduit("pipelines", "test", files(folder, FRAME_TESTS, FRAMES))
    # Then what arrives is what a run would deliver
    assert done.exit_code == 0, done.output
    # And a statement that a run would refuse is refused
    refused = FRAMES.replace("WHERE after.n <> '0'", "ORDER BY after.n")
    done = conduit("pipelines", "test", files(folder, FRAME_TESTS, refused))
    assert done.exit_code == 2
    assert "processors: processor late: sql: " in done.stderr
