"""Output of a plugin's specification, and its settings from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conduit_tasks.cli.output import print_table
from conduit_tasks.connections import SETTING
from conduit_tasks.connectors.base import Described, Option, Spec
from conduit_tasks.errors import ConfigError


def as_dict(spec: Spec) -> dict[str, Any]:
    """Returns a specification for programs."""
    return {"name": spec.name, "summary": spec.summary, "options": [_option(option) for option in options(spec)]}


def print_spec(spec: Spec, side: str = "", *, first: bool = True) -> None:
    """Prints a specification for people: name and summary, then a line per option. `side`: source or destination."""
    if not first:
        print()
    print(f"{spec.name}{f' ({side})' if side else ''}: {spec.summary}")
    print()
    if spec.options:
        print_table(("OPTION", "DEFAULT", "MEANING"), [(o.name, default(o), meaning(o)) for o in options(spec)])
    else:
        print("It takes no options.")


def options(spec: Spec) -> tuple[Option, ...]:
    """Returns the options of a plugin; first the Airflow connection, if it takes one."""
    if spec.connection is None:
        return spec.options
    types = f"of type {' or '.join(spec.connection.types)}"
    return (Option(SETTING, f"name of an Airflow connection, {types}: it gives {spec.connection.gives}"), *spec.options)


def summary(found: Described) -> str:
    """Returns a connector's summary in a line: of both sides if they differ."""
    if found.error:
        return f"cannot be loaded: {found.error}"
    said = [cls.spec.summary.rstrip(".") for cls in (found.source, found.destination) if cls is not None]
    return f"{'. '.join(dict.fromkeys(said))}."


def default(option: Option) -> str:
    """Returns the default of an option as text, or `required`."""
    if option.required:
        return "required"
    return "" if option.default is None else option.default


def meaning(option: Option) -> str:
    """Returns an option's help, with its choices if the help does not name them, Conduit's name, and whether it is
    secret."""
    missing = [choice for choice in option.choices if choice not in option.help]
    text = f"{option.help}; one of {', '.join(option.choices)}" if missing else option.help
    if option.conduit:
        text += f"; Conduit's {option.conduit}"
    return f"{text} (secret)" if option.secret else text


def as_settings(pairs: Iterable[str], command: str) -> dict[str, str]:
    """Reads settings from `KEY=VALUE`, … Raises ConfigError that names the command, but not the value: it may be
    secret."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{command}: '{key}' is not of the form KEY=VALUE")
        settings[key.strip()] = value
    return settings


def _option(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "help": option.help,
        "default": option.default,
        "required": option.required,
        "secret": option.secret,
        "choices": list(option.choices),
        "conduit": option.conduit or None,
    }
