"""Finds the program of a standalone connector: by the name and the version that it gives in its own specification.

What a program answered to `Specify` is kept beside the installation's other files for as long as the program stays the
same, so that it is not started for every look.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from conduit_tasks.connectors.plugins import STANDALONE, parse_plugin
from conduit_tasks.errors import ConduitError, ConfigError, UnknownPlugin
from conduit_tasks.settings import settings

_LATEST = ("", "latest")
_AT_A_TIME = 4


@dataclass(frozen=True)
class Program:
    """A connector's program. `specification`: the message; `error`: why it gave none."""

    file: Path
    specification: Any = None
    error: str = ""


class Listed(NamedTuple):
    """A program as `conduit connectors list` shows it."""

    name: str
    sides: list[str]
    summary: str


def listed() -> list[Listed]:
    """Returns the programs of the folder; one that is no connector is there with the reason."""
    out = []
    for program in programs():
        spec = program.specification
        if spec is None:
            out.append(Listed(f"{STANDALONE}{program.file.name}", [], f"cannot be run: {program.error}"))
        else:
            version = f"@{spec.version}" if spec.version else ""
            out.append(Listed(f"{STANDALONE}{spec.name}{version}", _sides(spec), spec.summary))
    return sorted(out)


def sides_of(plugin: str) -> list[str]:
    """Returns the sides that a connector has parameters for; both if it has none at all."""
    return _sides(find(plugin).specification)


def _sides(specification: Any) -> list[str]:
    sides = ["source", "destination"]
    return [side for side in sides if getattr(specification, f"{side}_params")] or sides


def folder() -> Path:
    """Returns the folder of the programs (`CONDUIT_CONNECTORS`)."""
    return settings().home / settings().connectors


def find(plugin: str) -> Program:
    """Returns the program that `standalone:NAME[@VERSION]` names; the newest if there are several. A name with a slash
    is a file. Raises UnknownPlugin, saying what there is."""
    _, name, version = parse_plugin(plugin)
    if "/" in name:
        return _named_file(name, version)
    there = programs(name)
    named = [program for program in there if program.specification and program.specification.name == name]
    fitting = [p for p in named if version in _LATEST or _same(p.specification.version, version)]
    if fitting:
        return max(fitting, key=lambda program: _order(program.specification.version))
    if named:
        versions = ", ".join(sorted({p.specification.version for p in named}))
        raise UnknownPlugin(f"'{plugin}': {folder()} has {name} in version {versions}; write that, or add the program")
    failed = [program for program in there if program.error and name in program.file.name]
    if failed:
        raise ConfigError(f"'{plugin}': {failed[0].file.name} is no connector that can be run here: {failed[0].error}")
    names = sorted({program.specification.name for program in there if program.specification})
    said = f"there are {', '.join(STANDALONE + each for each in names)}" if names else "there is no connector in it"
    raise UnknownPlugin(
        f"'{plugin}' is not in {folder()}: {said}. Put its program there, executable, or name another folder by "
        "CONDUIT_CONNECTORS"
    )


def programs(first: str = "") -> list[Program]:
    """Returns the programs of the folder with their specifications; `first`: a name to look for in file names, so that
    the others are not started if one of those is it."""
    files = sorted(_files())
    likely = [file for file in files if first and first in file.name]
    found = _specified(likely)
    if any(p.specification and p.specification.name == first for p in found):
        return found
    return found + _specified([file for file in files if file not in likely])


def _files() -> Iterator[Path]:
    if not folder().is_dir():
        return
    for file in folder().iterdir():
        if file.is_file() and os.access(file, os.X_OK) and not file.name.startswith("."):
            yield file


def _named_file(name: str, version: str) -> Program:
    file = settings().home / name
    if not file.is_file():
        raise UnknownPlugin(f"'{STANDALONE}{name}': there is no such file")
    program = specified(file)
    if program.error:
        raise ConfigError(f"'{STANDALONE}{name}': it is no connector that can be run here: {program.error}")
    if version not in _LATEST and not _same(program.specification.version, version):
        raise UnknownPlugin(f"'{STANDALONE}{name}@{version}': it is version {program.specification.version}")
    return program


def _specified(files: list[Path]) -> list[Program]:
    if len(files) < 2:
        return [specified(file) for file in files]
    with ThreadPoolExecutor(_AT_A_TIME, "specify") as pool:
        return list(pool.map(specified, files))


_KNOWN: dict[tuple[Path, int, int], Program] = {}


def specified(file: Path) -> Program:
    """Returns a program with its specification, as it gave it last time if the file is the same."""
    from conduit_tasks.connectors.standalone.messages import message

    now = file.stat()
    key = (file.resolve(), now.st_mtime_ns, now.st_size)
    if (known := _KNOWN.get(key)) is not None:
        return known
    kept = _kept(*key)
    try:
        program = Program(file, message("connector.v2.Specification").FromString(kept.read_bytes()))
    except (OSError, ValueError):
        program = _asked(file)
        if program.specification is None:
            return program  # it may do better another time
        _keep(kept, program.specification.SerializeToString())
    _KNOWN[key] = program
    return program


def _asked(file: Path) -> Program:
    from conduit_tasks.connectors.standalone.client import Client

    try:
        client = Client(file, file.name, "specify")
    except (ConduitError, OSError) as error:
        return Program(file, error=str(error))
    try:
        return Program(file, client.specify())
    except (ConduitError, NotImplementedError) as error:
        return Program(file, error=str(error) or "it has no specification")
    finally:
        client.finish()


def _kept(file: Path, changed: int, size: int) -> Path:
    name = hashlib.sha256(f"{file}\0{changed}\0{size}".encode()).hexdigest()[:32]
    return settings().home / ".conduit" / "connectors" / name


def _keep(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        pass  # it is asked again then


def _same(version: str, asked: str) -> bool:
    return version.removeprefix("v") == asked.removeprefix("v")


def _order(version: str) -> tuple[list[int], bool, str]:
    """Orders versions as numbers; one with a suffix such as `-rc1` comes before the one without."""
    core, _, suffix = version.removeprefix("v").partition("-")
    return [int(n) for n in re.findall(r"\d+", core)], not suffix, suffix
