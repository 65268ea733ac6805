"""A guarantee broken on purpose: a named patch of the package's own text, Python or Lua (`mutants`).

A patch is put into the code that is loaded and taken out again: functions get the code of the changed text, scripts
their changed source. So a mutant costs what its seeds cost, and no second interpreter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import conduit_tasks
from conduit_tasks.redis_client import script as scripts
from conduit_tasks.verify.scripts import scripts as every_script
from conduit_tasks.verify.themes import seeds_of

PACKAGE = Path(conduit_tasks.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """`file`: below `conduit_tasks`; each of `changes`: a text that is in it once → what stands there instead."""

    name: str
    file: str
    changes: dict[str, str]
    theme: str = ""
    """Of the seeds that aim at it; empty: any."""
    also: Mutant | None = None
    """What has to be broken with it, as each alone would still be caught by the other."""
    begin: int = 0
    """Where the test begins to look, at a seed which finds it soon; 0: at the theme's first."""

    @property
    def first(self) -> int:
        """The seed that the test tries first."""
        return next(seeds_of(self.theme, self.begin or 1))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The package is broken meanwhile. Raises ValueError where the text has moved on."""
        text = (files("conduit_tasks") / self.file).read_text()
        changed = text
        for old, new in self.changes.items():
            if changed.count(old) != 1:
                raise ValueError(f"{self.name}: {self.file} has {changed.count(old)} times {old!r}")
            changed = changed.replace(old, new)
        with ExitStack() as stack:
            if self.also is not None:
                stack.enter_context(self.also.applied())
            for target, name, value in (_scripts if self.file.endswith(".lua") else _functions)(
                self.file, text, changed
            ):
                stack.callback(setattr, target, name, getattr(target, name))
                setattr(target, name, value)
            yield


def _scripts(file: str, text: str, changed: str) -> Iterator[tuple[Any, str, Any]]:
    for module, name, script in every_script():
        if text in script.source:
            source = script.source.replace(text, changed)
            if scripts._GROWS.search(changed):
                source = source.replace(scripts._even_when_full([*script.keys]), "")
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            yield module, name, replace(script, source=source, sha=sha)


def _functions(file: str, text: str, changed: str) -> Iterator[tuple[Any, str, Any]]:
    """Functions and methods whose code the change touches; who has imported them has them too."""
    module = import_module("conduit_tasks." + file.removesuffix(".py").replace("/", "."))
    before, after = (dict(_codes(compile(t, module.__file__ or file, "exec"))) for t in (text, changed))
    found = False
    for path, code in after.items():
        if code == before.get(path):
            continue
        function = _find(module, path)
        if function is not None:
            found = True
            yield function, "__code__", code
    if not found:
        raise ValueError(f"{file}: the change touches no function")


def _codes(code: CodeType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            here = (*path, constant.co_name)
            yield here, constant
            yield from _codes(constant, here)


def _find(module: Any, path: tuple[str, ...]) -> FunctionType | None:
    found: Any = module
    for name in path:
        found = vars(found).get(name) if not isinstance(found, FunctionType) else None
        found = getattr(found, "fget", None) or getattr(found, "__wrapped__", None) or found
        found = getattr(found, "__func__", found)
        if found is None:
            return None
    return found if isinstance(found, FunctionType) else None


def lua(name: str, script: str, old: str, new: str = "", theme: str = "", begin: int = 0) -> Mutant:
    """A mutant of a script."""
    (file,) = PACKAGE.glob(f"**/scripts/**/{script}.lua")
    return Mutant(name, file.relative_to(PACKAGE).as_posix(), {old: new}, theme, begin=begin)
