"""Tables of the command line."""

from __future__ import annotations

import pytest

from conduit_tasks.cli.output import print_table


def test_columns_are_as_wide_as_they_show_and_numbers_are_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    # Given letters of two columns' width, a number beside nothing, and a text wider than any terminal
    print_table(["id", "n", "what"], [["日本", 1_234_567, "x" * 500], ["[bold]a", None, "b"]])
    assert capsys.readouterr().out.splitlines() == [
        "id               n  what",
        f"日本     1,234,567  {'x' * 500}",
        "[bold]a          -  b",
    ]


def test_a_cell_moves_no_cursor_and_ends_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "what"], [["a", "one\ntwo\t\x1b[31mred\x07\u202e"], ["b", "-"]])
    assert capsys.readouterr().out.splitlines() == ["id  what", "a   one two �[31mred��", "b   -"]


def test_a_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "n"], [])
    assert capsys.readouterr().out == "id  n\n"
