"""Options of a standalone connector, made of the parameters that it specifies, and the check of its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.options import SDK
from conduit_tasks.errors import ConfigError
from conduit_tasks.secret_names import OPTION

REQUIRED, GREATER, LESS, INCLUSION, EXCLUSION, REGEX = range(1, 7)
INT, FLOAT, BOOL, DURATION = 2, 3, 4, 6
_TYPES = {1: "text", 2: "a whole number", 3: "a number", 4: "true or false", 5: "a file", 6: "a duration such as 5s"}
_UNIT = r"(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[+-]?(0|((\d+(\.\d*)?|\.\d+){_UNIT})+)")
_NUMBERS = {INT: re.compile(r"[+-]?\d+"), FLOAT: re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")}
_TRUE_FALSE = frozenset({"1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"})
OURS = "conduit."
"""Prefix of settings that are ours: the connector does not get them."""


def spec_of(plugin: str, specification: Any, parameters: Mapping[str, Any], ours: tuple[Option, ...]) -> Spec:
    """Returns name, summary and options of one side; `ours`: options that we add."""
    options = [_option(name, parameters[name]) for name in sorted(parameters, key=lambda n: (n.startswith(SDK), n))]
    version = f", {specification.version}" if specification.version else ""
    summary = specification.summary or specification.description or specification.name
    return Spec(plugin, f"{summary.strip().rstrip('.')}{version}.", (*options, *ours))


def _option(name: str, parameter: Any) -> Option:
    rules = {rule.type: rule.value for rule in parameter.validations}
    choices = tuple(each.strip() for each in rules[INCLUSION].split(",")) if INCLUSION in rules else ()
    said = [" ".join(parameter.description.split()).rstrip(".")]
    if parameter.type > 1:
        said.append(_TYPES.get(parameter.type, ""))
    for kind, text in ((GREATER, "more than"), (LESS, "less than"), (REGEX, "matching"), (EXCLUSION, "none of")):
        if kind in rules:
            said.append(f"{text} {rules[kind]}")
    required = REQUIRED in rules and not parameter.default
    return Option(
        name,
        "; ".join(filter(None, said)),
        parameter.default or None,
        required,
        secret=bool(OPTION.search(name)),
        choices=choices,
        example=_example(parameter, rules) if required else "",
    )


def _example(parameter: Any, rules: Mapping[int, str]) -> str:
    """Returns a value that the type takes, to stand in for a missing one while the others are checked."""
    if parameter.type in (INT, FLOAT):
        return str(int(float(rules.get(GREATER, "0"))) + 1)
    return {BOOL: "true", DURATION: "1s"}.get(parameter.type, "x")


def check(plugin: str, parameters: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings as the connector gets them: those that are given, trimmed. Raises ConfigError on the first
    that is unknown, missing, of another type or out of its range."""
    for _, problem in problems(plugin, parameters, settings):
        raise ConfigError(problem)
    return {k: v for k, v in settings.items() if not k.startswith(OURS)}


def problems(plugin: str, parameters: Mapping[str, Any], settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns everything that is wrong with settings: the option, and what to write instead."""
    out = []
    patterns = {name: re.compile(_pattern(name)) for name in parameters if "*" in name}
    for name, given in settings.items():
        if name.startswith(OURS):
            continue
        parameter = parameters.get(name)
        if parameter is None:
            found = next((p for p, pattern in patterns.items() if pattern.fullmatch(name)), None)
            parameter = parameters[found] if found else None
        if parameter is not None and given.strip() and (why := wrong(parameter, given.strip())):
            shown = "what it is set to" if OPTION.search(name) else f"'{given}'"
            out.append((name, f"{plugin}: option '{name}' cannot be {shown}: {why}"))
    return out


def wrong(parameter: Any, value: str) -> str:
    """Returns why a parameter cannot have a value; "" if it can."""
    if not _is_of(parameter.type, value):
        return f"it is {_TYPES.get(parameter.type, 'of another type')}"
    for rule in parameter.validations:
        if why := _broken(rule, value):
            return why
    return ""


def _is_of(kind: int, value: str) -> bool:
    if kind == BOOL:
        return value in _TRUE_FALSE
    if kind == DURATION:
        return bool(_DURATION.fullmatch(value))
    return kind not in _NUMBERS or bool(_NUMBERS[kind].fullmatch(value))


def _broken(rule: Any, value: str) -> str:  # noqa: PLR0911 - one rule each
    kind, bound = rule.type, rule.value
    listed = [each.strip() for each in bound.split(",")]
    if kind in (GREATER, LESS):
        try:
            number, limit = float(value), float(bound)
        except ValueError:
            return ""
        if kind == GREATER and not number > limit:
            return f"it must be more than {bound}"
        if kind == LESS and not number < limit:
            return f"it must be less than {bound}"
    elif kind == INCLUSION and value not in listed:
        return f"it is one of {', '.join(listed)}"
    elif kind == EXCLUSION and value in listed:
        return f"it is none of {', '.join(listed)}"
    elif kind == REGEX and not _matches(bound, value):
        return f"it must match {bound}"
    return ""


def _matches(pattern: str, value: str) -> bool:
    import re2

    try:
        return re2.search(pattern, value) is not None
    except re2.error:
        return True  # the connector judges it by itself


def _pattern(name: str) -> str:
    return ".+".join(re.escape(part) for part in name.split("*"))
