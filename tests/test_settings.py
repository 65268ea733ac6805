"""Settings of an installation that cannot hold are said at once, by the name of their variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.settings import STORES, Settings
from tests.cli.test_main import run

VARIABLES = ("CONDUIT_SPOOL", "CONDUIT_DEAD_LETTERS")


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("where", ["ftp://host/x", "http://host/x", "://x", "S4://bucket"])
def test_an_address_at_which_nothing_can_be_stored_names_its_variable_and_the_schemes_that_work(
    variable: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, where)
    with pytest.raises(ConfigError) as wrong:
        Settings(home=tmp_path)
    assert str(wrong.value).startswith(f"{variable}: nothing is stored at ")
    for scheme in STORES:
        assert f"{scheme}://" in str(wrong.value)


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_command_says_it_in_a_line(variable: str, tmp_path: Path) -> None:
    # Given a password in the address
    env = {variable: "ftp://user:secret@host/x", "CONDUIT_HOME": str(tmp_path)}
    # When a command looks for its pipeline
    done = run("status", "p", **env)
    # Then it ends with a line that names the variable, and not the password
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"conduit: {variable}: nothing is stored at ftp://")
    assert "secret" not in done.stderr


@pytest.mark.parametrize("where", ["spool", "/var/a:b", "fsspec+memory://x", *(f"{each}://x/y" for each in STORES)])
def test_a_folder_and_an_address_of_a_store_are_taken(where: str, tmp_path: Path) -> None:
    made = Settings(home=tmp_path, spool=where, dead_letters=where)
    assert (made.spool, made.dead_letters) == (where, where)
