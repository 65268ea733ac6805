"""Unit tests of pipelines from `.test.yaml` files: read, run through processors and triggers, compared
(`docs/pipeline-tests.md`)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.load import pipeline_files
from conduit_tasks.record.record import Record
from conduit_tasks.record.written import read as read_record
from conduit_tasks.topology import Pipeline

SUFFIXES = (".test.yaml", ".test.yml")
_KEYS = {"name", "pipeline", "input", "expect", "nacks"}
_NACK_KEYS = {"node", "processor", "class", "message"}


@dataclass(frozen=True)
class Case:
    """One test. `inputs`: source id and record, in order. `expect`: destination → partial records. `nacks`: for each
    expected failure, texts that its parts contain."""

    name: str
    pipeline: Pipeline
    inputs: list[tuple[str, Record]]
    expect: dict[str, list[dict[str, Any]]]
    nacks: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> list[str]:
        """Runs the test and returns the differences as lines to print; none: it passed."""
        from conduit_tasks.operate.walk import walk

        walked = walk(self.pipeline, self.inputs)
        faults: list[str] = []
        for destination, expected in self.expect.items():
            faults += _compared(destination, expected, [each.to_opencdc() for each in walked.arrived[destination]])
        got = [
            {"node": n.node, "processor": n.processor, "class": n.error_class, "message": n.message}
            for n in walked.nacks
        ]
        if len(got) != len(self.nacks) or not all(map(_contains, got, self.nacks)):
            faults += ["nacked:", *_diff(self.nacks, got)]
        return faults


def are_tests(file: Path) -> bool:
    """Returns whether it is a file of unit tests, by its name in any case."""
    return file.name.lower().endswith(SUFFIXES)


def tests_beside(pipeline_file: Path) -> Path:
    """Finds `flights.test.yaml` for `flights.yaml`. Raises ConfigError if there is none."""
    beside = sorted(pipeline_file.parent.iterdir()) if pipeline_file.parent.is_dir() else []
    for path in beside:
        if are_tests(path) and _stem(path) == pipeline_file.stem:
            return path
    raise ConfigError(f"{pipeline_file}: there is no {pipeline_file.stem}{SUFFIXES[0]} beside it; write one")


def pipeline_beside(tests: Path) -> Path:
    """Finds `flights.yaml` for `flights.test.yaml`. Raises ConfigError if there is none."""
    for path in pipeline_files(tests.parent):
        if path.stem == _stem(tests):
            return path
    raise ConfigError(f"{tests}: there is no pipeline file {_stem(tests)}.yaml beside it")


def _stem(tests: Path) -> str:
    """Returns `flights` for `flights.test.yaml`."""
    return Path(tests.stem).stem


def load(file: Path, pipelines: Mapping[str, Pipeline]) -> list[Case]:
    """Loads the cases of a file. Raises ConfigError that names the file, the test and the key."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    tests = content.get("tests") if isinstance(content, dict) else None
    if not isinstance(tests, list) or not tests or content.keys() - {"tests"}:
        raise ConfigError(f"{file}: write a list of tests under the key tests, and nothing else")
    cases = []
    for number, test in enumerate(tests, start=1):
        where = f"{file}: test {number}"
        try:
            cases.append(_case(test, number, pipelines))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return cases


def _case(test: Any, number: int, pipelines: Mapping[str, Pipeline]) -> Case:
    _only(test, _KEYS, "a test")
    name = test.get("pipeline")
    if name is None and len(pipelines) == 1:
        [name] = pipelines
    if name not in pipelines:
        raise ValueError(f"pipeline must be one of {', '.join(pipelines)}")
    pipeline = pipelines[name]
    expect = test.get("expect") or {}
    _only(expect, {each.id for each in pipeline.destinations}, "expect")
    for destination, records in expect.items():
        if not isinstance(records, list):
            raise ValueError(f"expect.{destination} must be a list of records; [] where none arrives")
        for each in records:
            _read(_present(each), f"expect.{destination}")
    nacks = test.get("nacks") or []
    if not isinstance(nacks, list):
        raise ValueError("nacks must be a list")
    for each in nacks:
        _only(each, _NACK_KEYS, "nacks")
    if not expect and not nacks:
        raise ValueError("it expects nothing; write expect, nacks or both")
    inputs = _inputs(test.get("input"), pipeline)
    return Case(str(test.get("name") or f"test {number}"), pipeline, inputs, expect, nacks)


def _inputs(given: Any, pipeline: Pipeline) -> list[tuple[str, Record]]:
    sources = [each.id for each in pipeline.sources]
    if isinstance(given, list) and len(sources) == 1:
        given = {sources[0]: given}
    _only(given, set(sources), "input")
    inputs: list[tuple[str, Record]] = []
    for source, records in given.items():
        if not isinstance(records, list):
            raise ValueError(f"input.{source} must be a list of records")
        for each in records:
            record = _read(each, f"input.{source}")
            if not record.position:
                record.position = str(len(inputs) + 1).encode()
            inputs.append((source, record))
    return inputs


def _read(value: Any, where: str) -> Record:
    try:
        return read_record(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _present(expected: Any) -> Any:
    """Returns the expected record without metadata that is expected to be absent."""
    metadata = expected.get("metadata") if isinstance(expected, dict) else None
    if not isinstance(metadata, dict):
        return expected
    return {**expected, "metadata": {name: value for name, value in metadata.items() if value is not None}}


def _only(value: Any, names: set[str], what: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a map with {', '.join(sorted(names))}")
    unknown = sorted(str(name) for name in value.keys() - names)
    if unknown:
        raise ValueError(f"{what} has no {', '.join(unknown)}; it has {', '.join(sorted(names))}")


def _compared(destination: str, expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> list[str]:
    faults = []
    if len(expected) != len(got):
        faults.append(f"{destination}: {len(expected)} expected, {len(got)} arrived")
    for number in range(max(len(expected), len(got))):
        want = expected[number] if number < len(expected) else None
        have = got[number] if number < len(got) else None
        shown = have if want is None or have is None else _part(have, want)
        if want != shown:
            faults += [f"{destination}, record {number + 1}:", *_diff(want, shown)]
    return faults


def _part(got: dict[str, Any], want: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a record that the test names: its keys, names in metadata, before and after in the
    payload."""
    part = {}
    for name, value in want.items():
        inner = name in ("metadata", "payload") and isinstance(value, dict)
        part[name] = {each: got[name].get(each) for each in value} if inner else got[name]
    return part


def _contains(got: dict[str, str], want: dict[str, str]) -> bool:
    return all(str(text) in got[name] for name, text in want.items())


def _diff(want: Any, got: Any) -> list[str]:
    """Returns a diff: `-` expected, `+` received."""
    before, after = (
        [] if value is None else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
        for value in (want, got)
    )
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))
    return [f"  {line}" for line in lines[2:] if not line.startswith("@@")]
