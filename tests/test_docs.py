"""The documents say what is there: links, command lines, make targets, settings and pipeline files in them are real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app, load_command
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {"node_modules", "out", "build", "dist"}

_FENCE = re.compile(
    r"^(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^(?P=mark)[ \t]*$", re.M | re.S
)
_SPAN = re.compile(r"(?<!`)`(?!`)(?P<code>[^`]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*$", re.M)
_COMMAND = re.compile(r"^(?:\$ )?(?:[\w./-]*/)?conduit (?P<words>.+)$")
_SHELL = {"", "sh", "bash", "shell", "console"}


def documents() -> list[Path]:
    """Every Markdown file of the project."""

    def below(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name in NOT_OURS:
                continue
            if path.is_dir():
                yield from below(path)
            elif path.suffix == ".md":
                yield path

    return list(below(ROOT))


DOCUMENTS = [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in documents()]


class Fence(NamedTuple):
    """A fenced block."""

    language: str
    body: str


@cache
def fences(path: Path) -> list[Fence]:
    text = path.read_text(encoding="utf-8")
    return [Fence(m["language"].lower(), m["body"]) for m in _FENCE.finditer(text)]


@cache
def prose(path: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The names that a reader's browser knows for the headings."""
    names: set[str] = set()
    for match in _HEADING.finditer(prose(path)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["text"])
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.add(name if name not in names else f"{name}-1")
    return names


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for match in _LINK.finditer(_SPAN.sub("", prose(path))):
        target, _, fragment = unquote(match["target"]).partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        where = (path.parent / target).resolve() if target else path
        if not where.exists() or (fragment and where.suffix == ".md" and fragment not in anchors(where)):
            broken.append(match["target"])
    assert broken == []


def command_lines(path: Path) -> list[str]:
    """What follows `conduit` in inline code and in shell blocks."""
    spans = (re.sub(r"\s+", " ", m["code"]) for m in _SPAN.finditer(prose(path)))
    blocks = (line.strip() for f in fences(path) if f.language in _SHELL for line in f.body.split("\n"))
    found = map(_COMMAND.match, (*spans, *blocks))
    return [m["words"] for m in found if m is not None]


@cache
def helped(*command: str) -> int:
    """Exit code of a command that is asked for its help."""
    return CliRunner().invoke(app, [*command, "--help"]).exit_code


def described(words: str) -> list[str]:
    """What is wrong with one command line: a command or an option that does not exist."""
    parts = list(takewhile(lambda part: part not in ("<", ">", "|", "&&"), shlex.split(words, comments=True)))
    if not parts or parts[0].startswith("-"):
        return []
    try:
        command: Any = load_command(parts[0])
    except KeyError:
        return [f"there is no `conduit {parts[0]}`"]
    path = [parts[0]]
    for part in parts[1:]:
        inner = getattr(command, "commands", {})
        if not inner or part.startswith(("-", "…", "<")) or part.isupper():
            break
        if part not in inner:
            return [f"there is no `conduit {' '.join([*path, part])}`"]
        command = inner[part]
        path.append(part)
    code = helped(*path)
    wrong = [] if code == 0 else [f"`conduit {' '.join(path)} --help` ends with {code}"]
    known = {"--help", *(name for p in command.params for name in (*p.opts, *p.secondary_opts))}
    options = (part.partition("=")[0] for part in parts if part.startswith("--"))
    return wrong + [f"`conduit {' '.join(path)}` has no {option}" for option in options if option not in known]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_command_line_exists_with_its_options(path: Path) -> None:
    assert [fault for words in command_lines(path) for fault in described(words)] == []


def test_a_command_line_that_does_not_exist_is_found(tmp_path: Path) -> None:
    # Given a document that names what there is, and what there is not
    page = tmp_path / "page.md"
    page.write_text(
        "`conduit status P --watch`, `conduit fly`\n\n```sh\nconduit broker mend\nconduit run p --fast  # …\n```\n"
    )
    # Then exactly the latter is found
    assert [fault for words in command_lines(page) for fault in described(words)] == [
        "there is no `conduit fly`",
        "there is no `conduit broker mend`",
        "`conduit run` has no --fast",
    ]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {
        target
        for path in documents()
        for code in (*(m["code"] for m in _SPAN.finditer(prose(path))), *(f.body for f in fences(path)))
        for target in re.findall(r"^make ([a-z]+)", code, re.M)
    }
    assert named
    assert named <= targets


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_whole_pipeline_file_is_valid(path: Path, tmp_path: Path) -> None:
    for number, fence in enumerate(fences(path)):
        if fence.language != "yaml" or not fence.body.startswith("version:"):
            continue
        file = tmp_path / f"{number}.yaml"
        file.write_text(fence.body, encoding="utf-8")
        assert [str(error) for error in load_file(file, plugins=True).errors] == []


def test_the_smallest_pipeline_of_the_readme_is_the_one_that_is_there() -> None:
    shown = next(f.body for f in fences(ROOT / "README.md") if f.language == "yaml")
    assert (ROOT / "include" / "pipelines" / "tiny.yaml").read_text(encoding="utf-8").endswith(shown)


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [n for n in Settings.model_fields if f"| `CONDUIT_{n.upper()}` |" not in page] == []
