"""The command itself: its table, its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks import __version__
from conduit_tasks.cli import main
from conduit_tasks.cli.main import Lazy
from conduit_tasks.cli.output import print_table
from conduit_tasks.errors import ConduitError
from tests.cli.conftest import Conduit
from tests.operate.asking import here

__all__ = ["here"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: lines, type: source, plugin: file, settings: {path: in.txt}}
      - {id: copy, type: destination, plugin: file, settings: {path: out.jsonl}}
"""


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


ABSURD = ("99999999999w", "9" * 400, "9223372036854775808", "nan", "inf", "-1e400", "a\0b", "\ud800", "٣", "-1", "")
ELSEWHERE = {"stack", "verify", "gateway", "init", "metrics"}
"""Commands that begin something if nothing is wrong."""


def values() -> Iterator[tuple[list[str], str]]:
    """(words of a command before a value, name of the option) for each option of each command that takes a value."""

    def below(words: list[str], command: Any) -> Iterator[tuple[list[str], str]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from below([*words, name], each)
        given = ["p" for param in command.params if param.param_type_name == "argument" and param.required]
        for param in command.params:
            if param.param_type_name == "option" and not param.is_flag:
                yield [*words, *given], param.opts[-1]

    for name in main.COMMANDS.keys() - ELSEWHERE:
        yield from below([name], main.load_command(name))


OPTIONS = {
    words: [name for _, name in options]
    for words, options in groupby(sorted((tuple(words), name) for words, name in values()), key=itemgetter(0))
}


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_an_absurd_value_is_an_error_that_is_said_and_no_traceback(
    words: tuple[str, ...], conduit: Conduit, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Made once, not for each value
    monkeypatch.setattr(main, "load_command", cache(main.load_command))
    pipeline = home / "include" / "pipelines" / "p.yaml"
    pipeline.parent.mkdir(parents=True, exist_ok=True)
    pipeline.write_text(PIPELINE)
    for option in OPTIONS[words]:
        for value in ABSURD:
            result = conduit(*words, f"{option}={value}")
            wrong = result.exception
            assert wrong is None or isinstance(wrong, SystemExit | ConduitError), (option, value, wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ledger p --since=99999999999w", "--since: '99999999999w' ago is before the year 1"),
        ("ledger p --since=soon", "--since: 'soon' is neither a date"),
        ("ledger p --micro-batch=9223372036854775808", "'--micro-batch': its number goes up to"),
        ("dead-letters list p --until=99999999999w", "until: '99999999999w' ago"),
        ("dead-letters list p --id=a\0b", "'--id': it is no text"),
        ("stop p --deadline=nan", "'--deadline'"),
        ("stop p --deadline=1e300", "'--deadline': it takes a number up to"),
        ("run p --timeout=-1", "'--timeout'"),
        ("gateway --port=65536", "'--port'"),
        ("metrics --serve=-1", "'--serve'"),
    ],
)
def test_an_absurd_value_is_said_with_its_option(words: str, said: str, conduit: Conduit, home: Path) -> None:
    (home / "include" / "pipelines").mkdir(parents=True, exist_ok=True)
    (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    result = conduit(*words.split(" "))
    assert result.exit_code != 0
    assert said in f"{result.output} {result.exception}"
