"""Connectors are found by name, and loaded only when asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.file.connector import FileDestination, FileSource
from conduit_tasks.connectors.log import LogDestination
from conduit_tasks.errors import ConfigError, UnknownPlugin


def test_a_plugin_is_found_as_conduit_writes_it() -> None:
    for plugin in ("file", "builtin:file", "builtin:file@v0.9.0", "file@latest"):
        assert registry.source_class(plugin) is FileSource
        assert registry.destination_class(plugin) is FileDestination
    assert registry.destination_class("log") is LogDestination


def test_one_of_ours_is_found_without_a_look_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task and each application would look, for 12 ms of CPU."""
    registry._load.cache_clear()
    monkeypatch.setattr(registry, "_added", lambda: pytest.fail("looked"))
    assert registry.source_class("file") is FileSource


def test_an_unknown_plugin_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match="no connector 'flie'; did you mean file"):
        registry.source_class("builtin:flie")
    with pytest.raises(UnknownPlugin, match="there are delta"):
        registry.source_class("zzzzzzzz")


def test_a_plugin_of_the_other_side_says_so() -> None:
    with pytest.raises(UnknownPlugin, match=r"'log' is a destination only; as a source there are .*file"):
        registry.source_class("log")
    with pytest.raises(UnknownPlugin, match="'generator' is a source only"):
        registry.destination_class("generator")


@pytest.mark.parametrize("module", ["registry", "file", "log", "generator"])
def test_looking_up_loads_neither_arrow_nor_a_client(module: str) -> None:
    code = (
        f"import sys, conduit_tasks.connectors.{module}\n"
        "print([m for m in ('pyarrow', 'pyspark', 'httptools', 'sqlalchemy', 'redis', 'airflow') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution of somebody else with three connectors: one that works, one that does not load, one of nothing."""
    (tmp_path / "others.py").write_text("from conduit_tasks.connectors.log import LogDestination as DESTINATION\n")
    (tmp_path / "others_broken.py").write_text("import a_library_that_is_not_there\n")
    (tmp_path / "others_empty.py").write_text("SOURCE = 5\n")
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[conduit.connectors]\nparrot = others\nbroken = others_broken\nempty = others_empty\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._added.cache_clear()
    yield
    registry._added.cache_clear()
    registry._load.cache_clear()


@pytest.mark.usefixtures("installed")
def test_others_add_connectors_and_a_broken_one_harms_only_itself() -> None:
    assert registry.destination_class("parrot") is LogDestination
    with pytest.raises(ConfigError, match=r"'broken': others_broken cannot be loaded: .*a_library_that_is_not_there"):
        registry.source_class("broken")
    with pytest.raises(ConfigError, match="'empty'"):
        registry.source_class("empty")
    known = registry.known()
    assert {"file", "generator", "log", "parrot", "broken"} <= set(known)
    assert "a_library_that_is_not_there" in known["broken"].error
    assert known["file"].source is FileSource
    assert not known["file"].error
