"""CSV files as a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import SourceError
from tests.connectors.file_reading import ALL, everything, payloads, source

CSV = (
    'name,"full ""title""",note\n'
    "a,plain,NA\n"
    '"b, c","two\nlines, and a ""quote""\r\nthree",""\n'
    "\n"
    'd,,"NA"\r\n'
    'ü,back\\slash,tab\there\n'
)  # fmt: skip

ROWS = [
    {"name": "a", 'full "title"': "plain", "note": None},
    {"name": "b, c", 'full "title"': 'two\nlines, and a "quote"\r\nthree', "note": ""},
    {"name": "d", 'full "title"': None, "note": "NA"},
    {"name": "ü", 'full "title"': "back\\slash", "note": "tab\there"},
]


@pytest.mark.parametrize("limit", [ALL, Limit(records=1), Limit(bytes=10)])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_csv_rows_are_objects_of_strings_and_nulls(home: Path, limit: Limit, bom: bytes) -> None:
    (home / "a.csv").write_bytes(bom + CSV.encode())
    assert payloads(source("a.csv", format="csv"), limit) == ROWS


def test_damaged_csv_rows_are_marked_and_the_others_pass(home: Path) -> None:
    (home / "a.csv").write_bytes(b'a,b\n1,2\n1,2,3\n1\n\xff,4\n5\' 3",x\n"6",7\n8,"9"z\nlone\rreturn,10\n')
    records = everything(source("a.csv", format="csv"))
    assert [r.after for r in records] == [
        {"a": "1", "b": "2"}, b"1,2,3", b"1", b"\xff,4", {"a": "5' 3\"", "b": "x"}, {"a": "6", "b": "7"},
        {"a": "8", "b": "9z"}, {"a": "lone\rreturn", "b": "10"},
    ]  # fmt: skip
    errors = {i: r.metadata["conduit.error"] for i, r in enumerate(records) if r.metadata}
    assert set(errors) == {1, 2, 3}
    assert "a.csv at byte 8: the row has 3 cells, the header 2" in errors[1]


def test_the_slow_and_the_fast_way_through_csv_say_the_same(home: Path) -> None:
    # Given sound rows, and the same in a file whose last row is damaged, so that all are decoded one by one
    (home / "fast.csv").write_text(CSV)
    (home / "slow.csv").write_text(CSV + "x\n")
    assert payloads(source("slow.csv", format="csv"))[:-1] == payloads(source("fast.csv", format="csv")) == ROWS


def test_a_lone_return_in_a_csv_row_does_not_make_it_two(home: Path) -> None:
    # Given sound rows only, where Arrow would take the return for the end of a row
    (home / "a.csv").write_bytes(b"a\none\rtwo\nthree\n")
    assert payloads(source("a.csv", format="csv")) == [{"a": "one\rtwo"}, {"a": "three"}]


def test_other_delimiters_quotes_and_nulls(home: Path) -> None:
    (home / "a.tsv").write_text("a\tb\n'x\ty'\t-\n\"\t?\n")
    rows = payloads(source("a.tsv", format="csv", delimiter="\\t", quote="'", null_values="-,?"))
    assert rows == [{"a": "x\ty", "b": None}, {"a": '"', "b": None}]
    (home / "b.csv").write_text('a;b\n"1;NA\n')
    assert payloads(source("b.csv", format="csv", delimiter=";", quote="", null_values="")) == [{"a": '"1', "b": "NA"}]


def test_a_header_is_checked(home: Path) -> None:
    (home / "a.csv").write_text("a,a\n1,2\n")
    connector = source("a.csv", format="csv")
    with pytest.raises(SourceError, match="names the column 'a' twice"):
        everything(connector)
    (home / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="no column 'id'"):
        everything(source("a.csv", format="csv", key="id"))
    (home / "a.csv").write_text("a,b\n")
    assert connector.plan({}, ALL) == []
