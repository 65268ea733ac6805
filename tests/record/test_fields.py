"""Field references: Conduit's grammar, and what each part of a record allows."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_tasks.errors import ConfigError, RecordError
from conduit_tasks.record.fields import parse
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch, to_records

SHARED = Origin("p", "c", "", {"opencdc.readAt": "7", "kind": "flight"})


def example() -> Record:
    return Record(
        b"pos",
        "update",
        {"own": "1"},
        key=b"raw key",
        before={"x": 1},
        after={"a": {"k": 5, "dotted.name": "d"}, "list": [1]},
        origin=SHARED,
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".Position", b"pos"),
        (".Operation", "update"),
        (".Metadata.own", "1"),
        ('.Metadata["opencdc.readAt"]', "7"),
        (".Metadata.absent", None),
        (".Key", b"raw key"),
        (".Payload.Before.x", 1),
        ('.Payload.After.a["k"]', 5),
        ('.Payload.After["a"]["dotted.name"]', "d"),
        (".Payload.After.absent.deeper", None),
        (".Payload.After.a", {"k": 5, "dotted.name": "d"}),
    ],
)
def test_a_reference_finds_its_value(text: str, value: Any) -> None:
    assert parse(text).get(example()) == value


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("Payload", 1),
        (".Body", 1),
        (".Payload.Middle", 9),
        (".Position.x", 10),
        (".Metadata.opencdc.readAt", 18),
        (".Payload.After.a b", 17),
        (".Payload.After[k]", 15),
        ('["Key"]x', 8),
    ],
)
def test_a_wrong_reference_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(ConfigError, match=f"column {column}:"):
        parse(text)


@pytest.mark.parametrize("action", ["get", "set", "delete", "rename"])
@pytest.mark.parametrize("text", [".Key.x", ".Payload.After.list.x", ".Payload.After.a.k.x"])
def test_a_nested_reference_into_what_has_no_fields_fails_the_record(text: str, action: str) -> None:
    more = {"get": (), "set": ("v",), "delete": (), "rename": ("n",)}[action]
    with pytest.raises(RecordError, match="refers into"):
        getattr(parse(text), action)(example(), *more)


def test_setting_creates_the_maps_on_the_way() -> None:
    subject = Record(b"1")
    parse(".Payload.After.a.b.c").set(subject, 3)
    parse(".Key.id").set(subject, "k")
    assert subject.after == {"a": {"b": {"c": 3}}}
    assert subject.key == {"id": "k"}


def test_whole_data_takes_text_as_raw_and_maps_as_structured() -> None:
    subject = Record(b"1")
    parse(".Key").set(subject, "text")
    parse(".Payload.After").set(subject, {"x": 1})
    assert (subject.key, subject.after) == (b"text", {"x": 1})
    with pytest.raises(RecordError, match="raw or structured"):
        parse(".Key").set(subject, 5)


@pytest.mark.parametrize("text", [".Position", ".Payload"])
def test_position_and_payload_are_never_set(text: str) -> None:
    with pytest.raises(RecordError, match="cannot be set"):
        parse(text).set(example(), "x")


def test_an_operation_is_one_of_the_four() -> None:
    subject = example()
    parse(".Operation").set(subject, "delete")
    assert subject.operation == "delete"
    with pytest.raises(RecordError, match="no operation"):
        parse(".Operation").set(subject, "remove")


def test_metadata_takes_text_only() -> None:
    with pytest.raises(RecordError, match="takes text"):
        parse(".Metadata.x").set(example(), 5)


def test_renaming_changes_the_last_part_only_and_leaves_the_absent_alone() -> None:
    subject = example()
    parse(".Payload.After.a.k").rename(subject, "n")
    parse(".Payload.After.absent").rename(subject, "n")
    parse(".Metadata.own").rename(subject, "mine")
    assert subject.after == {"a": {"n": 5, "dotted.name": "d"}, "list": [1]}
    assert subject.metadata == {"mine": "1"}
    with pytest.raises(RecordError, match="cannot be renamed"):
        parse(".Payload.After").rename(subject, "x")


def test_removed_metadata_of_the_slice_stays_removed_through_the_spool() -> None:
    # Given a record whose slice shares metadata with others
    subject, other = example(), example()
    # When one removes a shared value and renames another
    parse('.Metadata["opencdc.readAt"]').delete(subject)
    parse(".Metadata.kind").rename(subject, "sort")
    # Then it is gone for that record alone, also after a round through Arrow
    [again] = to_records(spool_batch([0], [0], [subject]), [SHARED])
    assert again.meta() == subject.meta() == {"own": "1", "sort": "flight"}
    assert parse(".Metadata.kind").get(again) is None
    assert other.meta()["kind"] == "flight"


def test_bytes_that_are_not_text_cannot_go_into_structured_data() -> None:
    with pytest.raises(RecordError, match="UTF-8"):
        parse(".Payload.After.a.k").set(example(), b"\xff")
