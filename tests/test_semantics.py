"""The semantics page says what the tests say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("semantics", ROOT / "scripts" / "semantics.py")
assert _spec
assert _spec.loader
semantics = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(semantics)


def test_the_page_is_up_to_date() -> None:
    assert semantics.PAGE.read_text() == semantics.page(), "run `python scripts/semantics.py`"


def test_every_marker_names_a_known_promise() -> None:
    assert set(semantics.proofs()) <= set(semantics.PROMISES)


def test_every_place_that_enforces_a_promise_exists() -> None:
    missing = [p for _, p in semantics.PROMISES.values() if p and not (ROOT / "conduit_tasks" / p).exists()]
    assert missing == []


def test_whatever_is_enforced_is_proved() -> None:
    proved = semantics.proofs()
    assert [n for n, (_, path) in semantics.PROMISES.items() if path and n not in proved] == []
