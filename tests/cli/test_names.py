"""A command that takes a pipeline's name says so at once if no pipeline can have that name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.cli import main
from tests.cli.conftest import Conduit

LONG = "p" * 5_000
IMPOSSIBLE = {"too long": LONG, "one letter too long": "p" * 129, "a path": "../../etc", "blanks": "p q", "empty": ""}


def commands() -> Iterator[list[str]]:
    """Words of each command that takes the name of a pipeline, with `{}` in its place."""

    def below(words: list[str], command: object) -> Iterator[list[str]]:
        for name, each in getattr(command, "commands", {}).items():
            yield from below([*words, name], each)
        arguments = [param for param in getattr(command, "params", ()) if param.param_type_name == "argument"]
        if any(param.name == "pipeline" for param in arguments):
            yield [*words, *("{}" if param.name == "pipeline" else "x" for param in arguments)]

    for name in main.COMMANDS:
        yield from below([name], main.load_command(name))


COMMANDS = sorted(commands())


def test_the_commands_that_take_a_name_are_found() -> None:
    found = {" ".join(words) for words in COMMANDS}
    assert {
        "status {}",
        "run {}",
        "explain {}",
        "plan x {}",
        "dead-letters list {}",
        "connectors teardown {} x",
    } <= found


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_name_that_no_pipeline_can_have_is_a_wrong_use(
    words: list[str], kind: str, conduit: Conduit, folder: Path
) -> None:
    # Given neither a Redis nor a project: nothing is asked before the name is looked at
    name = IMPOSSIBLE[kind]
    # When a command is called with the name
    result = conduit(*(name if word == "{}" else word for word in words), *_options(words))
    # Then it ends as a wrong use does, with a short message that says what a name is made of
    assert result.exit_code == 2, (result.output[:300], result.exception)
    said = " ".join(result.stderr.split())
    assert "1 to 128 of the characters" in said
    assert len(result.stderr) < 1_000
    assert list(folder.iterdir()) == []


def _options(words: list[str]) -> list[str]:
    """Options that the command does not go without."""
    return ["--from=2026-01-01", "--to=2026-01-02"] if words[0] == "replay" else []


@pytest.mark.parametrize("name", ["p" * 128, "A.b:c-d_9"])
def test_a_name_that_a_pipeline_can_have_is_looked_for(name: str, conduit: Conduit, folder: Path) -> None:
    result = conduit("status", name)
    assert f"no pipeline '{name}' in" in str(result.exception)


def test_what_explain_takes_for_a_file_is_none(conduit: Conduit, folder: Path) -> None:
    result = conduit("explain", "no/such.yaml")
    assert result.exit_code == 2
    assert "no file" in result.stderr
