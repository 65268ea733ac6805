"""What people write: pipeline files, templates, filters, units, references. Only errors of ours come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.errors import ConduitError, ConfigError, RecordError
from conduit_tasks.filters import compile_filters
from conduit_tasks.patterns import compiled
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.pipeline.schedule import parse_schedule
from conduit_tasks.record import fields, units
from conduit_tasks.record.cloudevents import unix_nanoseconds, view
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.templates import template
from conduit_tasks.templates.functions import FUNCTIONS
from tests.fuzz.hostile import DEPTHS, NUMBERS, TEXT, damaged, ending, fuzzed, json_like, near

ORIGIN = Origin("p", "in", "", {"opencdc.readAt": "1700000000000000000"})
GOOD = Path("include/pipelines/flights.yaml").read_bytes()
YAML = [
    *(
        'version: "2.2"\n',
        "pipelines:\n",
        "  - id: p\n",
        "    connectors:\n",
        "      - ",
        "settings: ",
        "{",
        "}",
        "[",
        "]",
    ),
    *(
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "!!python/object ",
        "|\n",
        ">\n",
        "---\n",
        "...\n",
        "\n%YAML 1.2\n---\n",
        "\n%TAG ! x\n---\n",
        "? ",
        ": ",
        "- ",
        "\t",
        "  ",
    ),
    *("${HOME}", "${X:-", "$$", "null", "1e999", "0x_", "1:60", "2001-01-01", "plugin: file", "type: source", "'", '"'),
]
TEMPLATE = [
    *(
        "{{",
        "}}",
        "{{-",
        "-}}",
        "(",
        ")",
        "|",
        " ",
        ".",
        "$",
        "$x",
        ":=",
        "=",
        ",",
        "`",
        '"',
        "/*",
        "*/",
        "0x",
        "1e9",
        "-1",
    ),
    *(
        ".Payload.After.a",
        ".Payload.After",
        ".Metadata",
        ".Key",
        "range ",
        "if ",
        "else",
        "end",
        "with ",
        "break",
        "continue",
    ),
    *(f"{name} " for name in FUNCTIONS),
]
CESQL = [
    *(
        "id",
        "source",
        "x",
        "'a'",
        '"%_"',
        "1",
        "2147483648",
        "TRUE",
        "NOT ",
        " AND ",
        " OR ",
        " XOR ",
        " LIKE ",
        " IN ",
    ),
    *(
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "=",
        "!=",
        "<>",
        "<",
        ">=",
        "EXISTS ",
        "INT(",
        "SUBSTRING(",
        "CONCAT(",
        "\\",
    ),
]


def loaded(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with ending():
        result = load_file(path, plugins=True, env={"HOME": "/home"})
    for finding in result.findings:
        assert finding.code
        assert finding.message


@fuzzed
@given(text=near(YAML).map(lambda text: text.encode(errors="surrogatepass")) | damaged(st.just(GOOD)))
@example(text=b"a: &a [" + b"*a," * 9 + b"]")
@example(text=b"\xff\xfe" + "version: 2.2".encode("utf-16-le"))
@example(text=b"%YAML 1.2\n---\npipelines: [")
def test_a_pipeline_file_that_is_none_has_findings(tmp_path: Path, text: bytes) -> None:
    loaded(tmp_path / "p.yaml", text)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["[", "{a: ", "- ", "a:\n ", "? ", "!!a ", "&a [", "(", "${", '"${A:-'])
@fuzzed
@given(depth=DEPTHS)
def test_a_pipeline_file_of_any_depth_has_findings(tmp_path: Path, piece: str, depth: int) -> None:
    loaded(tmp_path / "p.yaml", b'version: "2.2"\npipelines: ' + piece.encode() * depth)
    loaded(tmp_path / "p.yaml", piece.encode() * depth)


@fuzzed
@given(value=json_like())
def test_any_value_in_place_of_a_pipeline_has_findings(tmp_path: Path, value: Any) -> None:
    try:
        written = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return
    loaded(tmp_path / "p.yaml", b'{"version": "2.2", "pipelines": [%b]}' % written)
    connector = b'{"id": "c", "type": "source", "plugin": "file", "settings": %b, "processors": [%b]}' % (
        written,
        written,
    )
    loaded(
        tmp_path / "p.yaml",
        b'{"version": "2.2", "pipelines": [{"id": "p", "connectors": [%b, %b]}]}' % (connector, written),
    )


def rendered(text: str, record: Record) -> None:
    with ending():
        try:
            made = template.compile(text)
        except ConfigError:
            return
        for what in (made.render, made.condition):
            try:
                said = what(record)
            except RecordError:
                continue
            assert isinstance(said, bool) or len(said) < 64 << 20


@fuzzed
@given(text=near(TEMPLATE), after=json_like())
@example(text="{{ range .Payload.After }}{{ end }}", after=10**12)
@example(text="{{ index .Payload.After 0 }}", after=[10**5000])
def test_a_template_renders_or_fails_the_record(text: str, after: Any) -> None:
    rendered(text, Record(b"1", after=after, origin=ORIGIN))


@fuzzed
@given(
    name=st.sampled_from(sorted(set(FUNCTIONS) - {"now"})),
    values=st.lists(json_like() | st.sampled_from([10**9, 10**400, "9" * 5_000, "-+9", "a" * 5_000, -1]), max_size=4),
)
def test_every_function_of_templates_takes_any_value(name: str, values: list[Any]) -> None:
    arguments = " ".join(f"(index .Payload.After {n})" for n in range(len(values)))
    rendered(f"{{{{ {name} {arguments} }}}}", Record(b"1", after=values, origin=ORIGIN))


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["(", "{{if 1}}", "{{ (", "{{/*", "{{range 1}}", "((not ", "{{ not (", "{{with .Key}}"]
)
@fuzzed
@given(depth=DEPTHS)
def test_a_template_of_any_depth_is_compiled_or_refused(piece: str, depth: int) -> None:
    rendered(piece * depth, Record(b"1", origin=ORIGIN))
    rendered("{{ " + piece.strip("{ ") * depth + " 1 " + ")" * depth + " }}", Record(b"1", origin=ORIGIN))


def filtered(text: str, record: Record) -> None:
    with ending():
        try:
            matcher = compile_filters([{"sql": text}])
        except ConfigError:
            return
        try:
            matcher.matches(view(record))
        except ConduitError:
            return


@fuzzed
@given(text=near(CESQL), metadata=st.dictionaries(TEXT, TEXT, max_size=3))
def test_a_filter_decides_or_is_refused(text: str, metadata: dict[str, str]) -> None:
    filtered(text, Record(b"1", metadata=dict(metadata), origin=ORIGIN))


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["(", "NOT ", "-", "1 + ", "'a' LIKE 'b' OR ", "INT(", "1 IN (", "x AND "])
@fuzzed
@given(depth=DEPTHS)
def test_a_filter_of_any_depth_is_compiled_or_refused(piece: str, depth: int) -> None:
    filtered(piece * depth + "1", Record(b"1", origin=ORIGIN))
    if "(" in piece:
        filtered(piece * depth + "1" + ")" * depth, Record(b"1", origin=ORIGIN))


@pytest.mark.parametrize(
    "parse",
    [units.parse_duration, units.parse_size, units.parse_rate, parse_schedule, fields.parse],
    ids=lambda parse: parse.__name__,
)
@fuzzed
@given(
    text=TEXT
    | NUMBERS.map(str)
    | near(
        ["1", "9" * 400, ".", "s", "m", "h", "ms", "KiB", "P", "T", "W", "/", "*", "*/5", " ", "@", "-", ",", "e9", "٣"]
    )
    | near([".", "Payload", ".Payload.After", "Metadata", '["', '"]', "\\", "a", "Key", "[", "0"])
)
@example(text="9" * 400 + "PiB")
@example(text="9" * 5_000)
@example(text="9" * 400 + "w")
@example(text="*/0 * * * *")
@example(text="0 0 30 2 *")
def test_units_schedules_and_references_are_read_or_refused(parse: Any, text: str) -> None:
    with ending():
        try:
            parse(text)
        except ConfigError:
            return


@fuzzed
@given(
    text=TEXT | near(["2024", "-01", "-31", "T", "23:59:60", ".", "9" * 40, "Z", "+25:00", "+00:00", " ", "W", "00"])
)
def test_a_time_is_read_or_no_value(text: str) -> None:
    try:
        unix_nanoseconds(text)
    except ValueError:
        return


@fuzzed
@given(
    text=near(
        ["(", ")", "[", "]", "*", "+", "?", "{9}", "{1000}", "|", "\\", "\\C", "\\pL", "(?i)", "(?P<a>", "^", "$", "."]
    )
)
def test_a_pattern_is_compiled_or_no_value(text: str) -> None:
    with ending():
        try:
            found = compiled(text)
        except ValueError:
            return
        found.search(b"aaaa" * 1000)
