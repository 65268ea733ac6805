"""`conduit validate`: places, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Conduit

GOOD = """\
version: "2.2"
pipelines:
  - id: good
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.txt}}
      - {id: out, type: destination, plugin: file, settings: {path: out.txt}}
"""
BAD = GOOD.replace("id: good", "id: bad").replace("type: source", "type: sauce")


def test_a_good_file_gives_0(conduit: Conduit, folder: Path) -> None:
    (folder / "good.yaml").write_text(GOOD)
    done = conduit("validate", "good.yaml")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "1 pipeline(s) good, 0 error(s), 0 warning(s)" in done.stderr


def test_a_finding_has_its_place_its_code_and_what_to_do_and_gives_1(conduit: Conduit, folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD)
    done = conduit("validate", "bad.yaml")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "bad.yaml:5:18: error E103 'sauce' is no value of type",
        "    write one of 'source' or 'destination'",
    ]


def test_warnings_alone_give_0(conduit: Conduit, folder: Path) -> None:
    (folder / "w.yaml").write_text(GOOD.replace('"2.2"', "2.7"))
    done = conduit("validate", "w.yaml")
    assert done.exit_code == 0
    assert "warning W102" in done.stdout


def test_what_cannot_be_read_gives_2(conduit: Conduit) -> None:
    done = conduit("validate", "missing.yaml")
    assert done.exit_code == 2
    assert done.stdout.startswith("missing.yaml:0:0: error E001 cannot be read")


def test_without_arguments_the_projects_folder_is_checked(conduit: Conduit, folder: Path) -> None:
    pipelines = folder / "include" / "pipelines"
    pipelines.mkdir(parents=True)
    (pipelines / "good.yaml").write_text(GOOD)
    (pipelines / "bad.yml").write_text(BAD)
    done = conduit("validate")
    assert done.exit_code == 1
    assert "bad.yml:5:18" in done.stdout


def test_json_holds_the_same_for_programs(conduit: Conduit, folder: Path) -> None:
    (folder / "bad.yaml").write_text(BAD)
    (folder / "good.yaml").write_text(GOOD)
    done = conduit("validate", "bad.yaml", "good.yaml", "--format", "json")
    answer = json.loads(done.stdout)
    assert done.exit_code == 1
    assert answer["pipelines"] == ["good"]
    assert answer["findings"] == [
        {
            "file": "bad.yaml",
            "line": 5,
            "column": 18,
            "code": "E103",
            "severity": "error",
            "message": "'sauce' is no value of type",
            "hint": "write one of 'source' or 'destination'",
            "pipeline": "bad",
        }
    ]


def test_the_pipelines_of_this_repository_are_good(conduit: Conduit) -> None:
    done = conduit("validate", Path(__file__).parents[2] / "include" / "pipelines")
    assert (done.exit_code, done.stdout) == (0, "")


def test_the_schema_is_json(conduit: Conduit) -> None:
    assert "PipelineKeys" in json.loads(conduit("schema").stdout)["$defs"]
