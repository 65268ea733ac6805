"""The wheel of this checkout, and fresh environments that it is installed into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

from tests.test_dependencies import ROOT

UV = str(Path(sys.executable).with_name("uv"))


def build(source: Path, out: Path) -> Path:
    """Builds it. `source`: an empty folder for a copy: in the checkout setuptools leaves a folder behind, and takes old
    files from it."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "conduit_tasks", source / "conduit_tasks", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(out), str(source)], check=True, capture_output=True, timeout=500)
    [made] = out.glob("*.whl")
    return made


def uv(*arguments: str | Path, timeout: float = 580) -> str:
    """Runs uv; returns what it printed. Uses pip's index, if one is set."""
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
    done = subprocess.run(
        [UV, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **index},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def environment(folder: Path) -> Path:
    """Makes an empty environment; returns its folder of programs."""
    uv("venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin"


def install(programs: Path, *wanted: str) -> None:
    """Installs into an environment, and leaves what is there as it is where it can."""
    uv("pip", "install", "--quiet", "--no-config", "--python", programs / "python", *wanted)


def lend(programs: Path, *packages: str) -> None:
    """Puts packages of this environment into another one, their files linked where they can be: to build pyspark, of
    which there is no wheel, costs 30 s of CPU, and says nothing about ours."""
    [there] = (programs.parent / "lib").glob("python3.*/site-packages")
    for package in packages:
        for file in distribution(package).files or ():
            if "__pycache__" not in file.parts:
                source, target = Path(str(file.locate())).resolve(), Path(os.path.normpath(there / file))
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source, target)
                except FileExistsError:
                    continue  # pyspark and its client have files in common
                except OSError:  # another file system
                    shutil.copy2(source, target)


def lend_compiled(programs: Path) -> None:
    """Puts what this environment has compiled into another one, where both have the same file of source: uv links the
    files of both to the same ones. Programs there need not compile them again."""
    [there] = (programs.parent / "lib").glob("python3.*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for compiled in here.rglob("__pycache__/*.pyc"):
        name = f"{compiled.name.partition('.')[0]}.py"
        target = there / compiled.relative_to(here)
        with suppress(OSError):  # it has no such file, or is on another file system
            if os.path.samefile(compiled.parent.with_name(name), target.parent.with_name(name)):
                target.parent.mkdir(exist_ok=True)
                os.link(compiled, target)


def versions(programs: Path) -> dict[str, str]:
    """Package → version, of an environment."""
    frozen = uv("pip", "freeze", "--no-config", "--python", programs / "python").split()
    return dict(line.split("==") for line in frozen if "==" in line)
