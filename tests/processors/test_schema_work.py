"""The work of checking a value by a schema is bounded, however the value was made to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.processors import schema_work
from conduit_tasks.record.jsons import DEPTH
from tests.fork import Fork
from tests.processors.conftest import one, record, run, step
from tests.processors.test_avro import registered

T = {"$ref": "#/$defs/t"}
OBJECT = {"type": "object", "properties": {"a": T}}
LIST = {"type": "array", "items": T}
JSON_SCHEMAS: dict[str, dict[str, Any]] = {
    "anyOf": {"anyOf": [OBJECT | {"required": ["a"]}, OBJECT]},
    "oneOf": {"oneOf": [OBJECT | {"required": ["a"]}, OBJECT, {"type": "integer"}]},
    "allOf": {"allOf": [OBJECT, OBJECT | {"maxProperties": 9}]},
    "anyOf in lists": {"anyOf": [LIST, LIST | {"minItems": 1}]},
    "properties twice": OBJECT | {"patternProperties": {"a": T}, "required": ["a"]},
    "unevaluated": {"anyOf": [OBJECT, {"properties": {"a": T}}], "type": "object", "unevaluatedProperties": False},
}
RECURSIVE = {
    "type": "record",
    "name": "A",
    "fields": [
        {
            "name": "a",
            "type": [
                "null",
                "int",
                "A",
                {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "int", "A", "B"]}]},
            ],
        }
    ],
}


def _checked(values: list[Any], settings: dict[str, str], read: int) -> list[tuple[str | None, str | None]]:
    schema_work.READ = read
    plugin = settings.pop("plugin", "schema.check")
    results = [run(record(value), step(plugin, **settings)) for value in values]
    return [(result.error_class, result.error) for result in results]


def checked(values: list[Any], read: int = schema_work.READ, **settings: str) -> list[tuple[str, str]]:
    """What becomes of the values in a process of its own, which is killed if it takes for ever. `read`: most fields
    that Avro's library reads."""
    process = Fork(_checked, values, settings, read)
    try:
        return process.answer(120)
    finally:
        process.kill()


def nested(levels: int, leaf: Any = "bad", lists: bool = False) -> dict[str, Any]:
    value = leaf
    for _ in range(levels - 1):
        value = [value] if lists else {"a": value}
    return {"a": value}


@pytest.mark.parametrize("name", JSON_SCHEMAS)
def test_a_value_nested_to_be_tried_in_every_way_is_one_dead_letter(name: str) -> None:
    schema = {"$defs": {"t": JSON_SCHEMAS[name]}, "properties": {"a": T, "z": {"type": "string"}}}
    lists = "lists" in name
    # When values come for which each level doubles the ways to look at what is below: one that is wrong at its end, one
    # that is right there and wrong beside, a wide one
    values = [nested(DEPTH - 1, lists=lists), nested(DEPTH - 1, [] if lists else {}, lists) | {"z": 1}]
    values.append({"a": [nested(60, lists=lists)["a"]] * 60} if lists else {"a": {"a": [nested(60)] * 60}})
    results = checked(values, schema=json.dumps(schema))
    # Then each is decided, and the error says so
    assert all(kind == "schema" and ".Payload.After" in said for kind, said in results), results
    assert len(results) == len(values)


def test_a_schema_that_refers_to_itself_by_other_ways_is_known_for_it() -> None:
    for schema in (
        {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "properties": {"a": {"$recursiveRef": "#"}}},
        {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
        {"$anchor": "n", "properties": {"a": {"$ref": "#n"}}},
        {"$defs": {"a/b": {"items": {"$ref": "#/$defs/c"}}, "c": {"items": {"$ref": "#/$defs/a~1b"}}}},
    ):
        assert not schema_work.Ways(schema).explainable(nested(60)), schema
    # And one that refers, but not to itself, explains every value
    flat = {"$defs": {"s": {"type": "string"}}, "properties": {n: {"$ref": "#/$defs/s"} for n in "abc"}}
    assert schema_work.Ways(flat).explainable(nested(DEPTH))


def test_a_fault_is_explained_where_that_takes_little() -> None:
    tree = {"properties": {"v": {"type": "integer"}, "l": {"$ref": "#"}, "r": {"anyOf": [{"$ref": "#"}]}}}
    check = step("schema.check", schema=json.dumps(tree))
    assert '.l.v: "x" is not of type "integer"' in (run(record({"l": {"v": "x"}, "r": {"v": 1}}), check).error or "")
    # And in a wide value, whose faults are as many as its items
    wide = step("schema.check", schema='{"properties": {"l": {"items": {"type": "integer"}}}}')
    assert ".l[0]:" in (run(record({"l": ["x"] * 100_000}), wide).error or "")


def test_a_wide_value_with_alternatives_is_not_looked_through_for_its_fault() -> None:
    schema = {"properties": {"l": {"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "null"}}]}}}
    [(kind, said)] = checked([{"l": ["x"] * 1_000_000}], schema=json.dumps(schema))
    assert (kind, "too many ways to look for where" in said) == ("schema", True)


@pytest.fixture
def by_avro(home: Path) -> dict[str, Callable[[], dict[str, str]]]:
    """Settings of the two processors that ask Avro's library if a value fits."""

    def encode() -> dict[str, str]:
        registered({}, json.dumps(RECURSIVE))
        return {
            "plugin": "avro.encode",
            "schema.strategy": "preRegistered",
            "schema.preRegistered.subject": "flights",
            "schema.preRegistered.version": "1",
        }

    return {"schema.check": lambda: {"type": "avro", "schema": json.dumps(RECURSIVE)}, "avro.encode": encode}


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["schema.check", "avro.encode"])
def test_records_of_avro_that_contain_each_other_are_read_a_limited_number_of_times(
    plugin: str, by_avro: dict[str, Callable[[], dict[str, str]]]
) -> None:
    settings = by_avro[plugin]()
    # When a value fits no branch, at a depth at which there are more ways than anybody could try; the whole limit, of
    # seconds, is gone through once
    read = {"schema.check": schema_work.READ, "avro.encode": schema_work.READ // 10}[plugin]
    [(kind, said)] = checked([nested(DEPTH - 1)], read, **settings)
    assert (kind, "too many ways to read it" in said) == ("schema" if plugin == "schema.check" else "processor", True)
    # Then one that fits is taken at any depth, and one that is wrong near the top is explained
    name = settings.pop("plugin", "schema.check")
    assert not run(record(nested(DEPTH - 1, leaf=1)), step(name, **settings)).error
    assert "bad" in (run(record(nested(2)), step(name, **settings)).error or "")
    if plugin == "schema.check":
        assert one(record({"a": {"a": 1}}), step(name, **settings)).after == {"a": {"a": 1}}
