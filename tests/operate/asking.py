"""A record is tried in this process: for tests of what is said, not of the process in which it is found."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from io import BytesIO

import orjson
import pytest

from conduit_tasks.operate import apart, try_child
from conduit_tasks.operate.ask import Ask
from conduit_tasks.operate.trying import Outside


def ask_here(ask: Ask, _: float) -> tuple[bytes, bytes, bool, int]:
    """Asks the code of the process in which a record is tried, in this process: an error that it does not expect is
    raised here."""
    said = BytesIO()
    try_child.answer(orjson.dumps(asdict(ask)), said, lambda: Outside(nullcontext()))
    return said.getvalue(), b"", False, 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has records tried in this process: a new one takes half a second of CPU."""
    monkeypatch.setattr(apart, "_ask", ask_here)
