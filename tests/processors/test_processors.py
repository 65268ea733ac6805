"""The record-wise processors, by Conduit's names and parameters."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.registry import build
from tests.processors.conftest import one, record, run, step


def test_set_prints_a_template_into_a_field_and_creates_the_way() -> None:
    out = one(
        record({"carrier": "UA"}),
        step("field.set", field=".Payload.After.made.by", value="{{ .Payload.After.carrier | lower }}!"),
        step("field.set", field=".Metadata.delay", value="late"),
        step("field.set", field=".Key", value="{{ .Payload.After.carrier }}"),
        step("field.set", field=".Operation", value="snapshot"),
    )
    assert out.after == {"carrier": "UA", "made": {"by": "ua!"}}
    assert (out.metadata["delay"], out.key, out.operation) == ("late", b"UA", "snapshot")


def test_rename_changes_last_parts_only() -> None:
    out = one(
        record({"a": {"b": 1}, "c": 2}, metadata={"m": "1"}),
        step("field.rename", mapping='.Payload.After.a.b:x, .Metadata["m"]:n,.Payload.After.absent:y'),
    )
    assert (out.after, out.metadata) == ({"a": {"x": 1}, "c": 2}, {"n": "1"})


def test_exclude_removes_trees() -> None:
    out = one(
        record({"a": {"b": 1}, "c": 2, "d,e": 3}, key=b"k"),
        step("field.exclude", fields='.Payload.After.a,.Payload.After["d,e"], .Key, .Metadata.kind'),
    )
    assert (out.after, out.key) == ({"c": 2}, None)
    assert "kind" not in out.meta()


@pytest.mark.parametrize(
    ("value", "type", "converted"),
    [
        ("12", "int", 12),
        ("-0012", "int", -12),
        (12.0, "int", 12),
        (True, "int", 1),
        ("2013-01-01T05:00:00Z", "int", 1357016400000000000),
        ("1.5e3", "float", 1500.0),
        (2, "float", 2.0),
        (False, "float", 0.0),
        (5, "string", "5"),
        (1e22, "string", "10000000000000000000000"),
        (True, "string", "true"),
        ("T", "bool", True),
        (0, "bool", False),
        (1357016400000000000, "time", "2013-01-01T05:00:00Z"),
        ("1357016400000000001", "time", "2013-01-01T05:00:00.000000001Z"),
        ("2013-01-01 05:00:00", "time", "2013-01-01T05:00:00Z"),
        (None, "int", None),
    ],
)
def test_convert_gives_the_type(value: Any, type: str, converted: Any) -> None:
    out = one(record({"f": value}), step("field.convert", field=".Payload.After.f", type=type))
    assert out.after == {"f": converted}
    assert out.after["f"].__class__ is converted.__class__


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ("", "int"),
        ("1_0", "int"),
        (" 1", "int"),
        ("٣", "int"),
        (1.5, "int"),
        ("9223372036854775808", "int"),
        ("nan", "float"),
        ("1e999", "float"),
        ("yes", "bool"),
        (2, "bool"),
        ("soon", "time"),
        (True, "time"),
        ({"a": 1}, "string"),
        ([1], "int"),
    ],
)
def test_what_does_not_convert_is_nacked_alone(value: Any, type: str) -> None:
    result = run(record({"f": value}), step("field.convert", field=".Payload.After.f", type=type))
    assert not result.records
    assert "cannot become" in (result.error or "")


@pytest.mark.proves("C4")
@pytest.mark.parametrize("type", ["float", "int", "bool", "time"])
def test_the_error_of_a_long_value_is_short_and_says_why(type: str) -> None:
    # Given text that Python's `re` would try in a million million ways
    value = "1" * 1_000_000 + "x"
    # When it is to become something else
    result = run(record({"f": value}), step("field.convert", field=".Payload.After.f", type=type))
    # Then its error says of which field and why, and does not hold the text
    error = result.error or ""
    assert (error.startswith(".Payload.After.f: '111"), f"cannot become {type}: " in error) == (True, True)
    assert len(error) < 2_100


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1.0), ("-1.", -1.0), ("+.5e-1", 0.05), ("1.5E3", 1500.0), ("007.10", 7.1)]
)
def test_text_that_is_a_number_becomes_one(text: str, number: float) -> None:
    result = run(record({"f": text}), step("field.convert", field=".Payload.After.f", type="float"))
    assert result.records[0].after == {"f": number}


@pytest.mark.parametrize("text", ["", ".", "e5", "1e", "1.e", "+", "1 ", "1..2", "0x1", "1_0", "inf"])
def test_text_that_is_no_number_does_not_become_one(text: str) -> None:
    result = run(record({"f": text}), step("field.convert", field=".Payload.After.f", type="float"))
    assert "cannot become float" in (result.error or "")


@pytest.mark.proves("C4")
def test_null_values_become_null_and_are_no_error() -> None:
    convert = step("field.convert", field=".Payload.After.dep_delay", type="int", null_values=",NA")
    for text, number in (("NA", None), ("", None), ("70", 70)):
        assert one(record({"dep_delay": text}), convert).after == {"dep_delay": number}
    assert one(record({}), convert).after == {}


def test_filter_filters_and_error_nacks_with_its_message() -> None:
    assert run(record({}), step("filter")).filtered
    result = run(record({"x": 5}), step("error", id="stop", message="no {{ .Payload.After.x }}"))
    assert (result.error, result.error_class, result.processor) == ("no 5", "processor", "stop")


@pytest.mark.parametrize(
    ("plugin", "settings", "option"),
    [
        ("field.set", {"field": ".Position", "value": "x"}, "field"),
        ("field.set", {"field": ".Payload.After.x", "value": "{{ nosuch }}"}, "value"),
        ("field.set", {"field": ".Key"}, "value"),
        ("field.rename", {"mapping": ".Payload.After:x"}, "mapping"),
        ("field.rename", {"mapping": ".Payload.After.x"}, "mapping"),
        ("field.exclude", {"fields": ".Operation"}, "fields"),
        ("field.convert", {"field": ".Metadata.x", "type": "int"}, "field"),
        ("field.convert", {"field": ".Payload.After.x", "type": "decimal"}, "type"),
        ("error", {"message": "{{ if }}"}, "message"),
        ("clone", {"count": "0"}, "count"),
        ("split", {"field": ".Metadata.x"}, "field"),
        ("json.decode", {"field": ".Position"}, "field"),
        ("base64.encode", {"field": ".Position"}, "field"),
        ("unwrap.debezium", {"field": ".Metadata.x"}, "field"),
        ("python", {"call": "nowhere"}, "call"),
        ("python", {"call": "no.such.module:f"}, "call"),
    ],
)
def test_wrong_settings_are_refused_by_option(plugin: str, settings: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(step(plugin, id="mine", **{k.replace("-", "_"): v for k, v in settings.items()}))
    assert "mine" in str(error.value)
    assert option in str(error.value)


def test_json_is_decoded_and_encoded_in_place() -> None:
    decode, encode = (step(f"json.{way}code", field=".Payload.After") for way in ("de", "en"))
    assert one(record(b'{"a":[1]}'), decode).after == {"a": [1]}
    assert one(record(b""), decode).after is None
    assert one(record({"a": 1}), encode).after == b'{"a":1}'
    inner = step("json.decode", field=".Payload.After.t")
    assert one(record({"t": "[1,null]"}), inner).after == {"t": [1, None]}
    assert "not JSON" in (run(record(b"{"), decode).error or "")
    assert "takes raw or structured" in (run(record(b"[1]"), decode).error or "")


def test_base64_is_decoded_and_encoded_in_place() -> None:
    assert one(record({"x": "hi"}), step("base64.encode", field=".Payload.After.x")).after == {"x": "aGk="}
    assert one(record(b"\xff\xfe"), step("base64.encode", field=".Payload.After")).after == b"//4="
    assert one(record(b"//4=\n"), step("base64.decode", field=".Payload.After")).after == b"\xff\xfe"
    assert one(record({}), step("base64.decode", field=".Payload.After.x")).after == {}
    assert "not base64" in (
        run(record(b"*"), step("base64.decode", field=".Key"), step("base64.decode", field=".Payload.After")).error
        or ""
    )


def test_clone_makes_independent_records_told_apart_by_index() -> None:
    result = run(
        record({"l": [1]}),
        step("clone", count="2"),
        step("json.encode", '{{ eq (index .Metadata "clone.index") "1" }}', field=".Payload.After.l"),
    )
    assert [r.metadata["clone.index"] for r in result.records] == ["0", "1", "2"]
    assert [r.ordinal for r in result.records] == [0, 1, 2]
    assert [r.after for r in result.records] == [{"l": [1]}, {"l": "[1]"}, {"l": [1]}]
    assert len({r.id for r in result.records}) == 3


def test_split_makes_a_record_per_element() -> None:
    result = run(record({"legs": [{"to": "A"}, "B"], "x": 1}), step("split", field=".Payload.After.legs"))
    assert [r.after for r in result.records] == [{"legs": {"to": "A"}, "x": 1}, {"legs": "B", "x": 1}]
    assert [r.metadata["split.index"] for r in result.records] == ["0", "1"]
    assert run(record({"legs": []}), step("split", field=".Payload.After.legs")).filtered
    assert "not an array" in (run(record({"legs": "x"}), step("split", field=".Payload.After.legs")).error or "")


def test_an_opencdc_record_is_unwrapped_and_keeps_only_the_position() -> None:
    wrapped = {
        "position": "b2xk",
        "operation": "update",
        "metadata": {"a": "1", "n": 2},
        "key": base64.b64encode(b"k").decode(),
        "payload": {"before": None, "after": {"x": 1}},
    }
    out = one(record(orjson.dumps(wrapped), position=b"mine"), step("unwrap.opencdc"))
    assert (out.position, out.operation, out.key, out.before, out.after) == (b"mine", "update", b"k", None, {"x": 1})
    assert out.meta() == {"a": "1", "n": "2"}
    assert "no record" in (run(record(b"[]"), step("unwrap.opencdc")).error or "")
    assert "operation" in (run(record({"operation": "x"}), step("unwrap.opencdc")).error or "")


def test_a_debezium_event_is_unwrapped_with_key_and_metadata() -> None:
    event = {
        "payload": {
            "before": None,
            "after": {"description": "test1", "id": 27},
            "source": {"table": "t", "lsn": 5, "nested": {"x": True}},
            "op": "r",
            "ts_ms": 1674061777225,
            "transaction": {"id": "tx"},
        },
        "schema": {},
    }
    subject = record({"nested": orjson.dumps(event).decode()}, key=b'{"payload":"27"}', metadata={"own": "1"})
    out = one(subject, step("unwrap.debezium", field=".Payload.After.nested"))
    assert (out.operation, out.key, out.after) == ("snapshot", b"27", {"description": "test1", "id": 27})
    assert out.metadata == {
        "own": "1",
        "table": "t",
        "lsn": "5",
        "nested.x": "true",
        "opencdc.readAt": "1674061777225000000",
        "debezium.transaction.id": "tx",
    }
    missing = run(record({"payload": {"op": "c"}}), step("unwrap.debezium"))
    assert "after, source" in (missing.error or "")


def test_a_kafka_connect_record_is_unwrapped() -> None:
    subject = record({"payload": {"x": 1}, "schema": {}}, key={"payload": {"id": 1}}, operation="update")
    out = one(subject, step("unwrap.kafkaconnect"))
    assert (out.after, out.key, out.operation) == ({"x": 1}, {"id": 1}, "create")
