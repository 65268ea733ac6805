"""The conformance suite of CloudEvents SQL, read from beside the repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from conduit_tasks.filters.cesql import ParseError, compile

SUITE = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "cesql_tck"
EVENT = {"specversion": "1.0", "id": "1", "source": "urn:test", "type": "test"}


def cases() -> Iterator[Any]:
    for path in sorted(SUITE.glob("*.yaml")):
        # Times stay the text that they are in a JSON event.
        yaml = YAML(typ="safe", pure=True)
        yaml.constructor.yaml_constructors["tag:yaml.org,2002:timestamp"] = lambda loader, node: node.value
        for case in yaml.load(path)["tests"]:
            yield pytest.param(case, id=f"{path.stem}: {case['name']}")


@pytest.mark.proves("T3")
@pytest.mark.skipif(not SUITE.is_dir(), reason=f"the conformance suite is not there: {SUITE}")
@pytest.mark.parametrize("case", list(cases()))
def test_the_conformance_suite_holds(case: dict[str, Any]) -> None:
    event = case.get("event") or EVENT | case.get("eventOverrides", {})
    try:
        result, kind, _ = compile(str(case["expression"])).evaluate(event)
    except ParseError as error:
        result, kind = False, error.kind
    assert kind == case.get("error")
    if "result" in case:
        assert (result, type(result)) == (case["result"], type(case["result"]))


@pytest.mark.skipif(not SUITE.is_dir(), reason=f"the conformance suite is not there: {SUITE}")
def test_the_suite_is_whole() -> None:
    assert len(list(cases())) == 275
