"""docs/semantics.md says what the tests say: every promise is proved by a test that names it, or is pending."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def semantics() -> ModuleType:
    """`scripts/semantics.py`, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("semantics_page", ROOT / "scripts" / "semantics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(semantics: ModuleType) -> str:
    return str(semantics.PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def proved(semantics: ModuleType) -> dict[str, list[Path]]:
    """Number → the tests that prove it."""
    return dict(semantics.markers(semantics.TESTS))


def test_the_page_names_the_tests_that_prove_each_promise(
    semantics: ModuleType, page: str, proved: dict[str, list[Path]]
) -> None:
    assert page == semantics.filled(page, proved), "run `python scripts/semantics.py`"


def test_every_promise_is_enforced_somewhere_and_proved_or_else_pending(
    semantics: ModuleType, page: str, proved: dict[str, list[Path]]
) -> None:
    assert semantics.faults(page, proved) == []


def _changed(page: str, number: str, *, place: str) -> str:
    """The page with another third column for one number."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {number} |"))
    cells = line.split(" | ")
    return page.replace(line, " | ".join([*cells[:2], place, *cells[3:]]))


@pytest.mark.parametrize(
    ("number", "place", "said"),
    [
        ("C9", "**pending**: pipes", "C9 is pending, but"),
        ("C9", "the engine", "C9 does not say where it is enforced"),
        ("C9", "[gone](../conduit_tasks/gone.py)", "which does not exist"),
    ],
)
def test_a_row_that_is_not_true_is_a_fault(
    number: str, place: str, said: str, semantics: ModuleType, page: str, proved: dict[str, list[Path]]
) -> None:
    # Given a page that says something else of one number
    wrong = _changed(page, number, place=place)
    # Then exactly that is found
    (found,) = set(semantics.faults(wrong, proved)) - set(semantics.faults(page, proved))
    assert said in found


def test_a_promise_without_a_row_without_a_test_or_unknown_is_a_fault(
    semantics: ModuleType, page: str, proved: dict[str, list[Path]]
) -> None:
    # When a row is missing, a proof is missing, and a marker names a number that does not exist
    lines = [line for line in page.splitlines() if not line.startswith("| C9 |")]
    proofs = {number: paths for number, paths in proved.items() if number != "T4"}
    proofs["Z9"] = [semantics.TESTS / "test_semantics.py"]
    # Then each is found
    found = set(semantics.faults("\n".join(lines), proofs)) - set(semantics.faults(page, proved))
    assert {fault.split(":")[0] for fault in found} == {"C9 has no row", "Z9 is no promise", "T4 has no test"}


def test_only_markers_count_and_their_numbers_are_written_out(semantics: ModuleType, tmp_path: Path) -> None:
    # Given a test with a marker, and a call that merely has the same name
    test = tmp_path / "test_a.py"
    test.write_text('@pytest.mark.proves("C9", "I5")\ndef test_a(): other.proves("C1")\n')
    # Then only the marker is a proof
    assert semantics.markers(tmp_path) == {"C9": [test], "I5": [test]}
    # And numbers that cannot be read are refused
    test.write_text("@pytest.mark.proves(*NUMBERS)\ndef test_a(): ...\n")
    with pytest.raises(SystemExit, match=r"test_a\.py:1"):
        semantics.markers(tmp_path)
