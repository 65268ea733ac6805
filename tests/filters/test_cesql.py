"""CloudEvents SQL: every part of the language, with the errors and results that come together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.errors import ConfigError
from conduit_tasks.filters import compile_filters
from conduit_tasks.filters.cesql import Kind, ParseError, compile
from conduit_tasks.filters.cesql.like import compile_like

EVENT: dict[str, Any] = {
    "id": "17",
    "source": "/flights/jfk",
    "type": "flight.departed",
    "specversion": "1.0",
    "carrier": "UA",
    "delay": "12",
    "seats": 180,
    "open": True,
    "word": "abc",
}


def evaluate(text: str) -> tuple[Any, Kind | None]:
    result, kind, message = compile(text).evaluate(EVENT)
    assert (kind is None) is (message is None)
    return result, kind


@pytest.mark.proves("T3")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        # literals
        ("'it\\'s'", "it's"),
        ('"say \\"a\\""', 'say "a"'),
        ("'a\\\"b\\n'", 'a\\"b\\n'),
        ("'back\\\\'", "back\\\\"),
        ("'two\nlines'", "two\nlines"),
        ("+7", 7),
        ("-2147483648", -2147483648),
        ("2147483647", 2147483647),
        ("007", 7),
        ("tRue", True),
        # attributes, in any case
        ("carrier", "UA"),
        ("Carrier", "UA"),
        ("seats", 180),
        ("open", True),
        # precedence
        ("1 + 2 * 3 - 4 / 2", 5),
        ("(1 + 2) * 3", 9),
        ("10 - 3 - 2", 5),
        ("4 -1", 3),
        ("4--1", 5),
        ("1 + 1 = 2 AND 3 > 2", True),
        ("TRUE OR FALSE AND FALSE", False),
        ("TRUE XOR TRUE OR TRUE", True),
        ("TRUE XOR TRUE AND TRUE", False),
        ("NOT open = TRUE", False),
        ("NOT (carrier = 'AA')", True),
        ("NOT EXISTS gate", True),
        ("- delay + 2", -10),
        ("1 + 1 LIKE '1'", 2),
        ("carrier IN ('UA') = TRUE", True),
        ("1 = 1 = TRUE", True),
        # arithmetic
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 % -2", 1),
        ("-7 / -2", 3),
        ("delay * 2", 24),
        # comparisons and casts
        ("delay = 12", True),
        ("delay != 12", False),
        ("delay <> 13", True),
        ("'+12' = delay", False),
        ("'+12' = 12", True),
        ("delay < 100 AND delay >= 12 AND delay <= 12 AND delay > 11", True),
        ("5 = TRUE", True),
        ("TRUE = 5", False),
        ("0 = FALSE", True),
        ("TRUE = 'true'", True),
        ("TRUE = 'TRUE'", False),
        ("'TRUE' = TRUE", True),
        ("open = 1", True),
        ("'A' = 'a'", False),
        # AND, OR, XOR decide early
        ("FALSE AND gate = 'x'", False),
        ("FALSE AND 1 / 0 = 1 AND TRUE", False),
        ("TRUE OR gate = 'x'", True),
        ("TRUE OR gate = 'x' XOR TRUE", False),
        ("'true' AND 1", True),
        # LIKE
        ("source LIKE '/flights/%'", True),
        ("source LIKE '%jfk'", True),
        ("source LIKE '%ight%'", True),
        ("source NOT LIKE '%x%'", True),
        ("carrier LIKE 'U_'", True),
        ("carrier LIKE 'u_'", False),
        ("seats LIKE '18_'", True),
        ("open LIKE 'true'", True),
        # IN
        ("carrier IN ('AA', 'UA')", True),
        ("carrier NOT IN ('AA', 'UA')", False),
        ("seats IN ('7', '180')", True),
        ("seats IN (7, 90 * 2)", True),
        ("carrier IN (word, carrier)", True),
        ("delay IN (12, 13)", True),
        # EXISTS
        ("EXISTS carrier", True),
        ("EXISTS gate", False),
        ("EXISTS id AND EXISTS SOURCE AND EXISTS type AND EXISTS specversion", True),
        # functions, in any case
        ("length(word)", 3),
        ("LENGTH('naïve😀')", 6),
        ("LENGTH(-12)", 3),
        ("CONCAT()", ""),
        ("CONCAT(word, 1, TRUE)", "abc1true"),
        ("CONCAT_WS ('-', 'a', 1)", "a-1"),
        ("LOWER(carrier)", "ua"),
        ("UPPER(word)", "ABC"),
        ("TRIM(' \t\u2003a b\u00a0\r\n')", "a b"),
        ("TRIM('\x1ca\x1f')", "\x1ca\x1f"),
        ("LEFT(word, 2)", "ab"),
        ("LEFT(word, '1')", "a"),
        ("LEFT(word, 0)", ""),
        ("RIGHT(word, 2)", "bc"),
        ("RIGHT(word, 0)", ""),
        ("RIGHT(word, 9)", "abc"),
        ("SUBSTRING(word, -3)", "abc"),
        ("SUBSTRING(word, 3)", "c"),
        ("SUBSTRING(word, -2, 1)", "b"),
        ("SUBSTRING(word, 2, 9)", "bc"),
        ("SUBSTRING(word, 2, 0)", ""),
        ("ABS(-5)", 5),
        ("INT('-0012')", -12),
        ("INT(TRUE)", 1),
        ("BOOL('FALSE')", False),
        ("BOOL(-1)", True),
        ("STRING(-1)", "-1"),
        ("STRING(TRUE)", "true"),
        ("IS_INT(delay)", True),
        ("IS_INT(word)", False),
        ("IS_BOOL('tRue')", True),
        ("IS_BOOL(word)", False),
    ],
)
def test_an_expression_has_its_value(text: str, result: Any) -> None:
    value, kind = evaluate(text)
    assert (value, type(value), kind) == (result, type(result), None)


@pytest.mark.proves("T3")
@pytest.mark.parametrize(
    ("text", "result", "kind"),
    [
        ("gate", False, Kind.missing_attribute),
        ("gate = ''", False, Kind.missing_attribute),
        ("gate != 'x'", False, Kind.missing_attribute),
        ("gate < 1", False, Kind.missing_attribute),
        ("1 / gate", 0, Kind.missing_attribute),
        ("gate / 0", 0, Kind.missing_attribute),
        ("-gate", 0, Kind.missing_attribute),
        ("NOT gate", False, Kind.missing_attribute),
        ("gate AND TRUE", False, Kind.missing_attribute),
        ("TRUE AND gate", False, Kind.missing_attribute),
        ("gate OR TRUE", False, Kind.missing_attribute),
        ("TRUE XOR gate", False, Kind.missing_attribute),
        ("gate LIKE '%'", False, Kind.missing_attribute),
        ("gate NOT LIKE 'x'", False, Kind.missing_attribute),
        ("gate IN ('x')", False, Kind.missing_attribute),
        ("gate NOT IN ('x')", False, Kind.missing_attribute),
        ("'x' NOT IN (gate, 1)", False, Kind.missing_attribute),
        ("LENGTH(gate)", 0, Kind.missing_attribute),
        ("CONCAT('a', gate)", "", Kind.missing_attribute),
        ("NOT (gate = 'x')", False, Kind.missing_attribute),
        ("1 / 0", 0, Kind.math),
        ("1 % 0", 0, Kind.math),
        ("2147483647 + 1", 0, Kind.math),
        ("-2147483648 - 1", 0, Kind.math),
        ("65536 * 65536", 0, Kind.math),
        ("-2147483648 / -1", 0, Kind.math),
        ("--2147483648", 0, Kind.math),
        ("ABS(-2147483648)", 2147483647, Kind.math),
        ("1 != 1 / 0", False, Kind.math),
        ("STRING(1 / 0)", "", Kind.math),
        ("word + 1", 0, Kind.cast),
        ("word = 1", False, Kind.cast),
        ("word != 1", False, Kind.cast),
        ("word < 1", False, Kind.cast),
        ("word = TRUE", False, Kind.cast),
        ("seats IN ('x', 180)", False, Kind.cast),
        ("word AND TRUE", False, Kind.cast),
        ("TRUE XOR word", False, Kind.cast),
        ("-word", 0, Kind.cast),
        ("NOT 10", True, Kind.cast),
        ("NOT word", True, Kind.cast),
        ("INT('2147483648')", 0, Kind.cast),
        ("INT(' 1')", 0, Kind.cast),
        ("INT('1_000')", 0, Kind.cast),
        ("INT('٣')", 0, Kind.cast),
        ("INT('')", 0, Kind.cast),
        ("BOOL('yes')", False, Kind.cast),
        ("LEFT(word, 'x')", "", Kind.cast),
        ("LEFT(word, -1)", "abc", Kind.function_evaluation),
        ("RIGHT(word, -1)", "abc", Kind.function_evaluation),
        ("SUBSTRING(word, 4)", "", Kind.function_evaluation),
        ("SUBSTRING(word, -4, 1)", "", Kind.function_evaluation),
        ("SUBSTRING(word, 1, -1)", "", Kind.function_evaluation),
        ("NOPE(1)", False, Kind.missing_function),
        ("LENGTH()", False, Kind.missing_function),
        ("LENGTH('a', 'b')", False, Kind.missing_function),
        ("CONCAT_WS()", False, Kind.missing_function),
        ("NOPE() = FALSE", False, Kind.missing_function),
        ("data", False, Kind.missing_attribute),
        ("EXISTS data", False, None),
    ],
)
def test_an_error_comes_with_a_result(text: str, result: Any, kind: Kind | None) -> None:
    value, error = compile(text).evaluate(EVENT | {"data": "x"})[:2]
    assert (value, type(value), error) == (result, type(result), kind)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (2**31, "2147483648"),
        (1.5, "1.5"),
        (b"\x00\x01", "AAE="),
        ({"a": [1]}, '{"a":[1]}'),
        (-5, -5),
        (False, False),
    ],
)
def test_an_attribute_of_another_type_is_its_text(value: Any, seen: Any) -> None:
    result = compile("x").evaluate({"x": value})
    assert (result.result, type(result.result)) == (seen, type(seen))
    assert compile("x = x").evaluate({"x": value}).result is True


def test_null_is_the_same_as_absent() -> None:
    assert compile("EXISTS x").evaluate({"x": None}).result is False
    assert compile("x = 'a'").evaluate({"x": None}).error_kind is Kind.missing_attribute


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "ends where a value was expected"),
        ("ABC(", 1, 5, "ends where a value or"),
        ("a =\n", 2, 1, "ends where a value"),
        ("a\n = \n )", 3, 2, r"a value was expected, not '\)'"),
        ("x LIKE 123", 1, 8, "a pattern in quotes was expected, not '123'"),
        ("x LIKE y", 1, 8, "a pattern in quotes"),
        ("a b", 1, 3, "an operator"),
        ("'abc", 1, 1, "has no end"),
        ("a = 'x';", 1, 8, "';' has no meaning"),
        ("EXISTS 'x'", 1, 8, "an attribute's name was expected"),
        ("EXISTS and", 1, 8, "an attribute's name was expected"),
        ("a IN ()", 1, 7, "a value was expected"),
        ("a IN 'x'", 1, 6, "'\\('"),
        ("(a", 1, 3, r"'\)' was expected"),
        ("CONCAT('a',)", 1, 12, "a value was expected"),
        ("'a' 'b'", 1, 5, "an operator"),
        ("2147483648", 1, 1, "no 32 bit integer"),
        ("1 + 2147483648", 1, 5, "no 32 bit integer"),
        ("+2147483648", 1, 2, "no 32 bit integer"),
        ("99999999999999999999", 1, 1, "no 32 bit integer"),
        ("NOT " * 200 + "open", 1, 1, "deeper than 100"),
    ],
)
def test_a_text_that_is_no_expression_is_refused_with_its_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        compile(text)
    error = raised.value
    assert isinstance(error, ParseError)
    assert (error.line, error.column, error.kind) == (line, column, Kind.parse)


def test_an_expression_names_the_attributes_it_reads() -> None:
    expression = compile("Type = 'a' AND (EXISTS carrier OR LENGTH(word) IN (seats, 1)) AND EXISTS id")
    assert expression.attributes == {"type", "carrier", "word", "seats"}


def test_long_chains_are_no_deep_nesting() -> None:
    assert compile(" OR ".join(f"delay = {n}" for n in range(-3000, 13))).evaluate(EVENT).result is True


@pytest.mark.proves("T3")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("type = 'flight.departed' AND EXISTS carrier", True),
        ("open", True),
        ("carrier", False),
        ("seats", False),
        ("carrier = 'UA' OR gate = 'B1'", True),
        ("gate = 'B1' OR carrier = 'UA'", False),
        ("EXISTS gate AND gate = 'B1' OR carrier = 'UA'", True),
        ("NOT word", False),
        ("delay > 10", True),
    ],
)
def test_a_trigger_wants_only_what_is_true_without_an_error(text: str, wanted: bool) -> None:
    matcher = compile_filters([{"sql": text}])
    assert matcher.matches(EVENT) is wanted
    assert compile_filters([{"not": {"not": {"sql": text}}}]).matches(EVENT) is wanted
    assert matcher.attributes == compile(text).attributes


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("type = ", r"filters\[0\].sql: CloudEvents SQL, line 1, column 8"),
        ("type =\n NOPE(1)", r"line 2, column 2: there is no function NOPE with 1 argument"),
        ("data = 'x'", "reads attributes, not data"),
        ("LOWER(type)", "a filter is Boolean, this expression is String"),
        ("delay + 1", "is Integer"),
        (True, "an expression was expected"),
    ],
)
def test_a_trigger_refuses_an_expression_that_cannot_match(content: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compile_filters([{"sql": content}])


def like_slowly(value: str, pattern: str) -> bool:
    """The definition of LIKE, one character at a time."""
    if not pattern:
        return not value
    if pattern[0] == "%":
        return any(like_slowly(value[n:], pattern[1:]) for n in range(len(value) + 1))
    escaped = pattern[0] == "\\" and pattern[1:2] in ("%", "_") and len(pattern) > 1
    head, rest = (pattern[1], pattern[2:]) if escaped else (pattern[0], pattern[1:])
    return bool(value) and (value[0] == head or (head == "_" and not escaped)) and like_slowly(value[1:], rest)


@given(st.text("ab\\%_\n", max_size=8), st.text("ab\\%_\n", max_size=6))
def test_like_is_what_its_definition_says(value: str, pattern: str) -> None:
    assert compile_like(pattern)(value) is like_slowly(value, pattern)


@pytest.mark.timeout(60)
def test_a_nasty_pattern_does_not_backtrack() -> None:
    assert compile_like("%a" * 30 + "%b")("a" * 3000) is False


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_division_and_remainder_fit_together(x: int, y: int) -> None:
    quotient, kind, _ = compile("x / y").evaluate({"x": x, "y": y})
    remainder = compile("x % y").evaluate({"x": x, "y": y}).result
    if kind is None:
        assert isinstance(quotient, int)
        assert isinstance(remainder, int)
        assert quotient * y + remainder == x
        assert abs(remainder) < abs(y)
        assert remainder == 0 or (remainder < 0) == (x < 0)
    else:
        assert y == 0 or (x, y) == (-(2**31), -1)


@given(st.text("anotlikeinxor ()=<'%,1+-*", max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    place = (1, 1)
    try:
        assert type(compile(text).evaluate(EVENT).result) in (str, int, bool)
    except ParseError as error:
        place = (error.line, error.column)
    assert min(place) >= 1
