"""Texts that others write are matched in linear time: a pattern of Python's own `re` that can try many ways takes n².

Every pattern of the package is tried on texts made to have it try: a beginning, a piece of one or two characters again
and again, an end at which it fails. All characters are those that the pattern names.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import conduit_tasks
from conduit_tasks.connectors.kafka import client as kafka_client
from conduit_tasks.connectors.sql.columns import columns_of_setting
from conduit_tasks.pipeline import validate_records, yaml

PACKAGE = Path(conduit_tasks.__file__).parent
ALIKE = "1a \"'x=\n"
"""Beside what a pattern names."""
SHORT, LONG = 200, 3_200
SUSPICIOUS = 1e-4
"""Seconds of CPU that a short text takes on no pattern that is linear."""
MOST = 64.0
"""How much longer the long text may take, which is 16 times as long; n² takes 256 times as long."""
Pattern = re.Pattern[str] | re.Pattern[bytes]
ASKED = {"match", "fullmatch", "search", "sub", "findall", "finditer", "split"}
GIVEN = re.compile(rf"\bre\.({'|'.join(sorted(ASKED))})\(")


def patterns() -> Iterator[tuple[str, Pattern, Iterable[str]]]:
    """(where, pattern, methods it is asked by) of every pattern that a module has, or gives to `re` as a constant."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "import re\n" not in source:
            continue
        name = ".".join(("conduit_tasks", *path.relative_to(PACKAGE).with_suffix("").parts))
        for attribute, value in vars(importlib.import_module(name)).items():
            if isinstance(value, re.Pattern) and f"\n{attribute} = re.compile(" in source:
                asked = set(re.findall(rf"\b{attribute}\.(\w+)\(", source)) & ASKED
                yield f"{name}.{attribute}", value, asked or {"finditer"}
        if not GIVEN.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKED:
                of, method = node.func.value, node.func.attr
                if isinstance(of, ast.Name) and of.id == "re" and isinstance(node.args[0], ast.Constant):
                    yield f"{name}:{node.args[0].value}", re.compile(node.args[0].value), {method}


FOUND = {where: (pattern, asked) for where, pattern, asked in patterns()}


def texts(pattern: str) -> Iterator[tuple[str, str, str]]:
    """(beginning, piece, end): one or two characters are the piece, and one at most the beginning."""
    named = sorted(set(pattern) | set(ALIKE))
    ends = ("", "\0", "x")
    yield from product(("", *named), named, ends)
    yield from product(("",), ("".join(pair) for pair in product(named, named) if pair[0] != pair[1]), ends)


def slow(pattern: Pattern, asked: Iterable[str]) -> tuple[str, str, str] | None:
    """A text on which it takes more than linear time."""
    raw = isinstance(pattern.pattern, bytes)
    said = pattern.pattern.decode("latin1") if isinstance(pattern.pattern, bytes) else pattern.pattern

    def seconds(method: str, text: str) -> float:
        given: Any = text.encode("latin1", "replace") if raw else text
        began = time.thread_time()
        # Who searches at all looks for all here, and who begins at the beginning does so.
        if method == "finditer":
            for _ in pattern.finditer(given):
                pass
        else:
            getattr(pattern, method)(given)
        return time.thread_time() - began

    methods = {method if method in ("match", "fullmatch") else "finditer" for method in asked}
    for begin, piece, end in texts(said):
        short = begin + piece * (SHORT // len(piece)) + end
        for method in methods:
            if seconds(method, short) < SUSPICIOUS:
                continue
            usual = min(seconds(method, short) for _ in range(3))
            long = begin + piece * (LONG // len(piece)) + end
            # The interpreter may clear its garbage away in one of them.
            if usual >= SUSPICIOUS and all(seconds(method, long) > MOST * usual for _ in range(3)):
                return begin, piece, end
    return None


def test_the_patterns_are_found() -> None:
    assert {"conduit_tasks.processors.convert._FLOAT", "conduit_tasks.pipeline.yaml._VARIABLE"} < FOUND.keys()


@pytest.mark.slow
@pytest.mark.parametrize("where", FOUND)
def test_no_text_takes_a_pattern_more_than_linear_time(where: str) -> None:
    assert slow(*FOUND[where]) is None


def read_yaml(text: str) -> object:
    return yaml.read(f"a: '{text}'\n", "f.yaml", {})


@pytest.mark.parametrize(
    ("look", "piece"),
    [
        (validate_records._fields, "{{"),
        (validate_records._fields, '{{ "\\'),
        (kafka_client.without_value, '"'),
        (kafka_client.without_value, '" for configuration property'),
        (read_yaml, "${"),
        (read_yaml, "${A"),
        (lambda text: columns_of_setting(f"a=.Key{text}"), " "),
    ],
)
def test_what_looks_over_text_by_itself_is_linear_too(look: Callable[[str], object], piece: str) -> None:
    def seconds(times: int) -> float:
        began = time.thread_time()
        look(piece * times)
        return time.thread_time() - began

    usual = min(seconds(2_500) for _ in range(3))
    assert min(seconds(40_000) for _ in range(2)) < MOST * max(usual, SUSPICIOUS)


def test_a_pattern_that_tries_many_ways_is_found_out() -> None:
    assert slow(re.compile(r"([0-9]+\.?[0-9]*)(e[0-9]+)?"), ["fullmatch"]) is not None
