"""What is wrong with a plugin's settings is told at once, whatever of it comes first."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from conduit_tasks.connectors import registry as connectors
from conduit_tasks.connectors.base import Spec
from conduit_tasks.errors import ConfigError
from conduit_tasks.processors import registry as processors
from conduit_tasks.topology import Processor
from tests.pipeline.conftest import Files

PLUGINS = [
    *((name, side) for name, found in connectors.known().items() for side in ("source", "destination")
      if getattr(found, side) is not None),
    *((name, "processor") for name in processors.known()),
]  # fmt: skip


def spec_of(plugin: str, side: str) -> Spec:
    if side == "processor":
        return processors.processor_class(plugin).spec
    found: Spec = getattr(connectors.known()[plugin], side).spec
    return found


def build(plugin: str, side: str, settings: Mapping[str, str]) -> None:
    if side == "processor":
        processors.build(Processor("a", plugin, settings, ""))
    else:
        getattr(connectors.known()[plugin], side)(settings)


@pytest.mark.parametrize(("plugin", "side"), PLUGINS)
def test_a_required_option_has_an_example_that_is_right(plugin: str, side: str) -> None:
    required = {option.name: option.stand_in for option in spec_of(plugin, side).options if option.required}
    said = ""
    try:
        build(plugin, side, required)
    except ConfigError as error:
        said = str(error)
    # What else is needed beside them is no fault of theirs.
    assert not said or "is missing" in said or "give " in said
    assert not [name for name in required if f"'{name}'" in said]


WRONG = [
    ("http", "destination", {"url": "ftp://x", "retry-on": "teapot", "batch.delay": "soon"}),
    ("http", "source", {"url": "x", "cursor.next": "magic", "timeout": "soon", "attempts": "0"}),
    ("sql", "destination", {"url": "nowhere", "table": "", "chunk": "0", "lock-timeout": "soon"}),
    ("sql", "source", {"url": "nowhere", "column": "", "table": "t", "missing": "maybe"}),
    ("postgres", "destination", {"url": "mysql://x", "table": "{{ if }}", "chunk": "none", "lock-timeout": "soon"}),
    ("redis", "destination", {"url": "x", "stream": "", "max-length": "long"}),
    ("kafka", "destination", {"servers": "", "topic": "no topic", "deliveryTimeout": "soon"}),
    ("s3", "destination", {"bucket": "", "records-per-object": "0", "endpoint-url": "x"}),
    ("gateway", "source", {"auth": "secret", "max-request-size": "large"}),
    ("field.convert", "processor", {"field": ".Nope", "type": "cow"}),
    ("enrich", "processor", {"on": ".Nope", "key": "", "into": ".Nada", "max-rows": "all", "path": "x.csv"}),
    ("avro.encode", "processor", {"schema.strategy": "magic"}),
    ("clone", "processor", {"count": "few", "colour": "red"}),
]  # fmt: skip


@pytest.mark.proves("F2")
@pytest.mark.parametrize(("plugin", "side", "settings"), WRONG, ids=[f"{p} {s}" for p, s, _ in WRONG])
def test_a_wrong_value_of_a_required_setting_hides_no_other(
    files: Files, plugin: str, side: str, settings: dict[str, str]
) -> None:
    # Given a plugin of which a required setting is wrong, and others, too
    text = files.with_pipeline()
    if side == "processor":
        given = json.dumps({"id": "a", "plugin": plugin, "settings": settings})
        text = files.with_pipeline(f"processors:\n  - {given}")
    else:
        old = "path: in.txt" if side == "source" else "path: out.txt"
        given = json.dumps(settings)
        text = text.replace(
            f"plugin: file\n        settings: {{{old}}}", f"plugin: {plugin}\n        settings: {given}"
        )
    # When the file is validated, then each is told
    wrong = {name for name in settings if (plugin, name) not in (("sql", "table"), ("enrich", "path"))}
    if (plugin, side) == ("sql", "destination"):
        wrong.add("table")
    said = [f.message for f in files.load(text, plugins=True).errors if f.code == "E205"]
    assert {name for name in wrong if any(f"'{name}'" in message for message in said)} == wrong, said
    assert len(said) == len(wrong)
