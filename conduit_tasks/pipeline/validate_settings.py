"""Checks of one plugin's settings by its specification and its constructor: all errors, not only the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.findings import Findings, Path

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Spec


def check_settings(
    make: Callable[[Mapping[str, str]], Any],
    settings: Mapping[str, str],
    report: Findings,
    path: Path,
    *,
    spec: Spec | None,
    what: str = "",
) -> None:
    """Reports the errors of the settings that `spec` finds, then the errors that `make`, the constructor, raises one
    after the other: each call gets the settings without the wrong ones, or with a valid value for a required one.
    Errors that may follow from such a removal or stand-in are not reported. `what`: prefix of messages of `spec`."""
    from conduit_tasks.connectors.options import problems

    if report.wrong((*path, "settings")):
        return
    rest, gone = dict(settings), set[str]()
    stand_ins = {o.name: o.stand_in for o in spec.options if o.required or o.example} if spec else {}
    written = {o.name: o.conduit for o in spec.options if o.conduit in settings} if spec else {}

    def add(message: str, names: Iterable[str]) -> None:
        spelled = [written.get(name, name) for name in names]
        report.add("E205", _place(spelled, report, path), message)
        gone.update(names)
        for name in spelled:
            rest.pop(name, None)
        rest.update({name: stand_ins[name] for name in gone if name in stand_ins})

    for name, problem in problems(spec, settings) if spec else ():
        add(f"{what}{problem}", [name])
    while True:
        try:
            make(rest)
            return
        except ConfigError as error:
            said = str(error)
        named = sorted(_named(said, [*rest, *written, *gone]), key=len, reverse=True)
        if gone.intersection(named) or (not named and gone & stand_ins.keys()):
            return
        add(said, named[:1])
        if not named:
            return


def _named(message: str, settings: Iterable[str]) -> list[str]:
    """Returns the settings that a message names: in quotes, as most messages do, or else as words."""
    quoted = [name for name in settings if f"'{name}'" in message or f"`{name}`" in message]
    return quoted or [n for n in settings if re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", message)]


def _place(names: Iterable[str], report: Findings, path: Path) -> Path:
    """Returns the path at which one of these settings is written: nested, dotted, or both."""
    base = (*path, "settings")
    below = {".".join(map(str, p[len(base) :])): p for p in report.keys if p[: len(base)] == base}
    return next((below[name] for name in names if name in below), base)
