"""The table of what runs how long, from pytest's report."""

from __future__ import annotations

from pathlib import Path

from scripts.durations import read, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.stack.test_whole" name="test_a" time="30.0" />
<testcase classname="tests.stack.test_parts" name="test_b" time="1.5" />
<testcase classname="tests.broker.test_delivery.TestRedelivery" name="test_c" time="0.4" />
<testcase classname="tests.broker.test_delivery" name="test_d[x.y]" time="0.7" />
</testsuite></testsuites>"""


def test_each_folder_has_a_row_the_longest_first_with_its_longest_file(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert table(read(tmp_path / "report.xml")).splitlines()[2:] == [
        "| `tests/stack/` | 2 | 2 | 32 | test_whole.py, 30 |",
        "| `tests/broker/` | 1 | 2 | 1 | test_delivery.py, 1 |",
        "| together | 3 | 4 | 33 | |",
    ]
