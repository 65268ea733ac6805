"""The chain of a section: order, conditions, what a failing record does, derived records."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError, UnknownPlugin
from conduit_tasks.processors import registry
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.chain import Chain, has_frames, segments
from conduit_tasks.record.record import Record
from tests.processors.conftest import one, record, run, step

FUNCTIONS = """
from conduit_tasks.record.record import Record

def double(record):
    record.after["x"] *= 2
    record.position = b"stolen"
    return record

def even(record):
    return record if record.after["x"] % 2 == 0 else None

def both(record):
    return [record, Record(b"", after={"x": -1})]

def wrong(record):
    return {"x": 1}

class Kit:
    same = staticmethod(lambda record: record)
"""


@pytest.fixture
def functions(home: Path) -> Path:
    (home / "user_functions.py").write_text(FUNCTIONS)
    return home


@pytest.mark.proves("C4")
def test_a_failing_record_is_nacked_alone_and_the_others_keep_their_order() -> None:
    # Given five records, one of which cannot be converted and one of which is filtered
    chain = Chain(
        [
            step("field.convert", id="number", field=".Payload.After.x", type="int"),
            step("filter", "{{ eq .Payload.After.x 3 }}"),
        ]
    )
    # When they pass the chain together
    results = chain.run([record({"x": text}) for text in ("1", "2", "oops", "3", "4")])
    # Then each has its own outcome, in place
    assert [[r.after["x"] for r in result.records] for result in results] == [[1], [2], [], [], [4]]
    assert [result.error is not None for result in results] == [False, False, True, False, False]
    assert [result.filtered for result in results] == [False, False, False, True, False]
    assert (results[2].error_class, results[2].processor) == ("processor", "number")


def test_a_false_condition_leaves_the_record_untouched_for_that_processor_only() -> None:
    out = one(
        record({"x": 1}),
        step("field.set", "{{ gt .Payload.After.x 5 }}", field=".Metadata.a", value="a"),
        step("field.set", "{{ eq .Payload.After.x 1 }}", field=".Metadata.b", value="b"),
    )
    assert out.metadata == {"b": "b"}


def test_a_condition_that_is_no_boolean_nacks_the_record() -> None:
    result = run(record({"x": 1}), step("filter", "{{ .Payload.After.x }}{{ .Key }}", id="odd"))
    assert result.processor == "odd"
    assert "true or false" in (result.error or "")


def test_a_wrong_condition_is_refused_with_the_processors_id() -> None:
    with pytest.raises(ConfigError, match=r"processor odd: condition: .*column 4"):
        Chain([step("filter", "{{ nosuch }}", id="odd")])


def test_a_record_that_stays_one_keeps_its_ordinal() -> None:
    assert one(record({}, ordinal=3), step("field.set", field=".Metadata.a", value="a")).ordinal == 3


def test_derived_records_pass_the_rest_of_the_chain_and_are_numbered_at_its_end() -> None:
    # Given a split, a filter that takes one of its records, and a clone
    steps = [
        step("split", field=".Payload.After.l"),
        step("filter", "{{ eq .Payload.After.l 2 }}"),
        step("clone", count="1"),
    ]
    # When one record passes, twice
    runs = [run(record({"l": [1, 2, 3]}), *steps) for _ in range(2)]
    # Then its descendants are numbered in order, the same way each time
    for result in runs:
        assert [(r.ordinal, r.after["l"]) for r in result.records] == [(0, 1), (1, 1), (2, 3), (3, 3)]
    assert [r.id for r in runs[0].records] == [r.id for r in runs[1].records]


def test_derived_records_are_nacked_together() -> None:
    result = run(
        record({"l": ["1", "x"]}),
        step("split", field=".Payload.After.l"),
        step("field.convert", id="number", field=".Payload.After.l", type="int"),
    )
    assert (len(result.records), result.processor) == (0, "number")
    assert all(r.filtered for r in [run(record({"l": [1]}), step("split", field=".Payload.After.l"), step("filter"))])


def test_python_functions_change_filter_and_derive(functions: Path) -> None:
    out = one(record({"x": 2}), step("python", call="user_functions:double"))
    assert (out.after, out.position) == ({"x": 4}, b"1")
    assert run(record({"x": 1}), step("python", call="user_functions:even")).filtered
    both = run(record({"x": 1}), step("python", call="user_functions:both"))
    assert [(r.position, r.ordinal, r.after["x"]) for r in both.records] == [(b"1", 0, 1), (b"1", 1, -1)]
    assert one(record({"x": 1}), step("python", call="user_functions:Kit.same")).after == {"x": 1}


def test_what_a_python_function_raises_nacks_its_record(functions: Path) -> None:
    result = run(record({}), step("python", id="mine", call="user_functions:double"))
    assert (result.error, result.processor) == ("KeyError: 'x'", "mine")
    assert "a record, a list of records or None" in (
        run(record({}), step("python", call="user_functions:wrong")).error or ""
    )


def test_results_can_be_sent_between_processes() -> None:
    results = Chain([step("field.convert", field=".Payload.After.x", type="int")]).run(
        [record({"x": "1"}), record({"x": "y"})]
    )
    again = pickle.loads(pickle.dumps(results))
    assert again[0].records[0].after == {"x": 1}
    assert (again[1].error, again[1].records) == (results[1].error, ())


def test_a_section_is_cut_where_frames_stand(functions: Path) -> None:
    section = [
        step("filter", id="a"),
        step("filter", id="b"),
        step("sql", query="SELECT * FROM records"),
        step("python", call="user_functions:double", mode="frame"),
        step("filter", id="c"),
    ]
    first, *frames, last = segments(section)
    assert isinstance(first, tuple)
    assert [p.id for p in first] == ["a", "b"]
    assert all(isinstance(each, FrameProcessor) for each in frames)
    assert len(frames) == 2
    assert isinstance(last, tuple)
    assert has_frames(section)
    assert not has_frames(section[:2])
    assert segments([]) == []


def test_every_known_processor_has_a_summary_and_an_unknown_one_is_told_the_nearest() -> None:
    known = registry.known()
    assert {"field.set", "field.convert", "sql", "python", "unwrap.debezium"} <= set(known)
    assert all(known.values())
    assert registry.processor_class("builtin:filter") is registry.processor_class("filter")
    with pytest.raises(UnknownPlugin, match=r"did you mean field\.set"):
        registry.processor_class("field.sett")


def test_the_input_record_is_the_output_record() -> None:
    subject = Record(b"1", after={"x": "1"})
    assert one(subject, step("field.convert", field=".Payload.After.x", type="int")) is subject
