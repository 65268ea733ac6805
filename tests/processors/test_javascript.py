"""`custom.javascript`: Conduit's scripts run, and none gets out of its bounds."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.javascript import JavaScript
from conduit_tasks.record.record import Record
from tests.processors.conftest import one, record, run
from tests.processors.conftest import step as settings_of


def step(script: str, **more: str):
    return settings_of("custom.javascript", script=script, **more)


def test_a_script_changes_every_part_but_the_position() -> None:
    out = one(
        record({"aaa": 111, "l": [1, "x"]}, key=b"bar", metadata={"gone": "1"}),
        step("""
            function process(rec) {
                rec.Operation = "update"; rec.Position = "other";
                rec.Metadata["returned"] = "JS"; rec.Metadata.n = 3; delete rec.Metadata.gone; delete rec.Metadata.kind;
                rec.Key = RawData("schön");
                rec.Payload.Before = new StructuredData(); rec.Payload.Before.x = null;
                rec.Payload.After["ccc"] = rec.Payload.After.l.length;
                return rec;
            }"""),
    )
    assert (out.position, out.operation, out.key) == (b"1", "update", "schön".encode())
    assert (out.before, out.after) == ({"x": None}, {"aaa": 111, "l": [1, "x"], "ccc": 2})
    assert out.meta() == {"opencdc.readAt": "1700000000000000000", "returned": "JS", "n": "3"}


def test_raw_data_is_bytes() -> None:
    script = """function process(r) {
        r.Payload.After = RawData(String.fromCharCode.apply(String, r.Payload.After) + "bar"); return r
    }"""
    assert one(record(b"foo"), step(script)).after == b"foobar"
    assert one(record(bytes(range(256)), key=b"\xff"), step("function process(r) { return r }")).after == bytes(
        range(256)
    )


def test_a_new_record_takes_the_place_of_the_old() -> None:
    out = one(
        record({"x": 1}, operation="delete", key=b"k"),
        step(
            'function process() { r = new Record(); r.Metadata.a = "b"; r.Payload.After = new RawData("y"); return r }'
        ),
    )
    assert (out.operation, out.key, out.after, out.meta()) == ("delete", None, b"y", {"a": "b"})


@pytest.mark.proves("C4")
def test_null_filters_and_an_array_derives() -> None:
    assert run(record({}), step("function process(r) { return null }")).filtered
    assert run(record({}), step("function process(r) { }")).filtered
    twice = run(record({"x": 1}), step("function process(r) { return [r, Record()] }"))
    assert [each.after for each in twice.records] == [{"x": 1}, None]
    assert [each.ordinal for each in twice.records] == [0, 1]


def test_no_whole_number_loses_a_digit() -> None:
    data = {
        "id": 9007199254740993,
        "most": 18446744073709551615,
        "less": -9223372036854775808,
        "text": "12345678901234567890",
    }
    assert one(record(dict(data)), step("function process(r) { return r }")).after == data
    more = one(record(dict(data)), step("function process(r) { r.Payload.After.id += 2n; return r }"))
    assert more.after["id"] == 9007199254740995


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("function process(r) { throw new Error('something bad') }", "something bad"),
        ("function process(r) { var m; m.test }", "TypeError"),
        ("function process(r) { r.Key = 'text'; return r }", "Key must be RawData or StructuredData, not string"),
        ("function process(r) { return 'x' }", "must return a Record"),
        ("function process(r) { r.Operation = 'upsert'; return r }", "no operation"),
        ("function process(r) { while (true); }", "interrupted"),
        ("function process(r) { const a = []; while (true) a.push('x'.repeat(1e6)) }", "out of memory"),
        ("function process(r) { return process(r) + 1 }", "Maximum call stack"),
    ],
)
def test_a_script_that_fails_or_exceeds_a_bound_nacks_its_record_alone(script: str, said: str) -> None:
    # Given a chain with the script, which fails only for one of three records
    bad = script.replace("function process", "function bad").replace("return process(r)", "return bad(r)")
    guarded = f"{bad}\nfunction process(r) {{ return r.Metadata.bad ? bad(r) : r }}"
    chain = Chain([step(guarded, timeout="200ms", memory="8MiB")])
    # When they pass it
    results = chain.run([record({}), record({}, metadata={"bad": "1"}), record({})])
    chain.close()
    # Then that one alone is nacked, with what was thrown
    assert [r.error is None for r in results] == [True, False, True]
    assert said in (results[1].error or "")


def test_a_script_reaches_no_file_no_network_and_no_module() -> None:
    script = """
        function process(r) {
            for (const name of ["require", "fetch", "XMLHttpRequest", "std", "os", "print", "console", "Deno"])
                if (typeof globalThis[name] !== "undefined") throw new Error(name);
            let loaded = "no"; import("os").then(() => { loaded = "yes" }, () => {});
            r.Metadata.loaded = loaded; return r;
        }"""
    assert one(record({}), step(script)).metadata["loaded"] == "no"


def test_what_a_script_logs_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="conduit.javascript"):
        one(
            record({}),
            step(
                'function process(r) { logger.Info().Str("k", "v").Msg("Hello"); logger.Debug().Msg("no"); return r }'
            ),
        )
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "conduit.javascript"] == [
        ("INFO", "Hello k=v")
    ]


def test_a_script_may_lie_in_a_file_of_the_home(home: Path) -> None:
    (home / "x.js").write_text("const by = 2;\nfunction process(r) { r.Payload.After.x *= by; return r }")
    assert one(record({"x": 21}), settings_of("custom.javascript", **{"script.path": "x.js"})).after == {"x": 42}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "exactly one of"),
        ({"script": "x", "script.path": "y"}, "exactly one of"),
        ({"script": "function {"}, "does not load: SyntaxError"),
        ({"script": "while (true);", "timeout": "50ms"}, "does not load: InternalError: interrupted"),
        ({"script": "function other() {}"}, "has no function process"),
        ({"script.path": "absent.js"}, "absent.js cannot be read"),
    ],
)
def test_a_script_that_cannot_run_is_refused_when_it_is_read(settings: dict[str, str], said: str, home: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        JavaScript(settings)


def test_each_thread_has_an_engine_of_its_own() -> None:
    processor = JavaScript({"script": "let n = 0; function process(r) { r.Payload.After.n = ++n; return r }"})

    def thrice(_: int) -> list[int]:
        return [processor.process(Record(b"1", after={})).after["n"] for _ in range(3)]  # type: ignore[union-attr,index,call-overload]

    with ThreadPoolExecutor(2) as pool:
        assert all(each in ([1, 2, 3], [4, 5, 6]) for each in pool.map(thrice, range(2)))
