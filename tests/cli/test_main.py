"""The command itself: its table, its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks import __version__
from conduit_tasks.cli import main
from conduit_tasks.cli.main import Lazy
from conduit_tasks.cli.output import print_table
from tests.cli.conftest import Conduit


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from conduit_tasks.cli.main import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)


def test_an_error_of_ours_is_one_line_on_stderr_and_exit_code_1(folder: Path) -> None:
    done = run("explain", "nothing")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("conduit: no pipeline 'nothing' in ")
    assert done.stderr.count("\n") == 1


def test_debugging_shows_where_the_error_came_from(folder: Path) -> None:
    done = run("explain", "nothing", CONDUIT_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_command_whose_module_is_missing_is_not_offered_and_breaks_no_other(
    conduit: Conduit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(main.COMMANDS, "ghost", Lazy("ghost", "Not there."))
    assert "ghost" not in conduit("--help").output
    assert conduit("ghost").exit_code == 2
    assert conduit("schema").exit_code == 0


def test_a_command_may_be_a_function_or_an_app(conduit: Conduit, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    package = folder / "conduit_more"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "greet.py").write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef morning() -> None:\n    print('good morning')\n"
        "@app.command()\ndef evening() -> None:\n    print('good evening')\n"
        "@app.callback()\ndef greet() -> None:\n    pass\n"
        "def greet_once(name: str) -> None:\n    print('hello', name)\n"
    )
    from conduit_tasks import cli

    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(package)])
    monkeypatch.setitem(main.COMMANDS, "greet", Lazy("greet", "Greets."))
    monkeypatch.setitem(main.COMMANDS, "greet-once", Lazy("greet", "Greets once."))

    assert conduit("greet", "evening").output == "good evening\n"
    assert conduit("greet-once", "Ada").output == "hello Ada\n"
    sys.modules.pop("conduit_tasks.cli.greet", None)


def test_the_version_is_printed(conduit: Conduit) -> None:
    assert conduit("--version").output.strip() == __version__


def test_tables_line_up_with_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["node", "delivered"], [["a", 1200], ["longer", 7], ["none", None]])
    assert capsys.readouterr().out == ("node    delivered\na           1,200\nlonger          7\nnone            -\n")
