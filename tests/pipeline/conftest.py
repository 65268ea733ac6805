"""Writing pipeline files and asking what is found in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from conduit_tasks.pipeline.load import LoadResult, load_file

FILES = Path(__file__).parent / "files"


class Files:
    """Writes pipeline files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "pipeline.yaml") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def load(
        self, text: str, *, env: Mapping[str, str] | None = None, plugins: bool = False, name: str = "pipeline.yaml"
    ) -> LoadResult:
        return load_file(self.write(text, name), env=env or {}, plugins=plugins)

    def with_pipeline(self, keys: str = "", **parts: str) -> str:
        """A good pipeline `p` (source `in`, destination `out`), with more keys at its end or in one of its parts."""
        source, destination = parts.get("source", ""), parts.get("destination", "")
        return (
            'version: "2.2"\n'
            "pipelines:\n"
            "  - id: p\n"
            "    connectors:\n"
            "      - id: in\n"
            "        type: source\n"
            "        plugin: file\n"
            f"        settings: {{path: in.txt}}\n{_indented(source, 8)}"
            "      - id: out\n"
            "        type: destination\n"
            "        plugin: file\n"
            f"        settings: {{path: out.txt}}\n{_indented(destination, 8)}"
            f"{_indented(keys, 4)}"
        )


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def only(files: Files) -> Callable[[str], tuple[int, int, str, str, str]]:
    """The one finding of a text, as (line, column, code, message, hint)."""

    def find(text: str, *, plugins: bool = False) -> tuple[int, int, str, str, str]:
        findings = files.load(text, plugins=plugins).findings
        assert len(findings) == 1, "\n".join(map(str, findings))
        f = findings[0]
        return f.line, f.column, f.code, f.message, f.hint

    return find
