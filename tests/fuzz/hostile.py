"""What hostile senders send: texts near the grammar, deep, long, in wrong encodings; and how much of it is tried.

`CONDUIT_FUZZ_EXAMPLES=20000 pytest tests/fuzz` is a long run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("CONDUIT_FUZZ_EXAMPLES", "15"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
HANGS = 240
"""Seconds after which an example is one that would not have ended."""

STRANGE = st.sampled_from(
    [
        "\0",
        "\x1b[2J",
        "\r\n",
        "\u2028",
        "\ufeff",
        "\ud800",
        "é",
        "\U0001f600",
        "٣",
        "²",
        "%",
        "\\",
        '"',
        "'",
        "{{",
        "}}",
        "${",
    ]
)
TEXT = st.text(st.characters(), max_size=30) | st.lists(STRANGE | st.text(max_size=3), max_size=6).map("".join)
BYTES = st.binary(max_size=60)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, -0.0, 5e-324])
)
DEPTHS = st.sampled_from([1, 2, 30, 199, 201, 300, 1_100, 20_000])


def json_like() -> st.SearchStrategy[Any]:
    """Values of JSON, odd ones among them."""
    leaf = st.none() | st.booleans() | NUMBERS | TEXT
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def near(words: Sequence[str], glue: str = "") -> st.SearchStrategy[str]:
    """Texts of a grammar's own words, in any order, with something strange in between."""
    return st.lists(st.sampled_from(words) | TEXT, max_size=14).map(glue.join)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Something sound of which bytes are changed, cut off, doubled or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["put", "cut", "set", "double"])):
            case "put":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "set":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "double":
                data[at:at] = data[max(0, at - 20) : at]
    return bytes(data)


class Hang(BaseException):
    """No error of ours, and none that anything catches."""


@contextmanager
def ending() -> Iterator[None]:
    """Fails where what is inside does not end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hangs(*_: Any) -> None:
        raise Hang(f"not done after {HANGS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    rest = signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(rest)
        signal.signal(signal.SIGALRM, before)
