"""Checks a plugin's settings, and reads numbers, durations, sizes and lists: every message names the plugin, the option
and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.units import parse_duration, parse_size

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Option, Spec

T = TypeVar("T")

SDK = "sdk."
"""Prefix of the options of Conduit's connector SDK, which wraps every connector there: they are accepted and passed on,
so that an unmodified file loads; a connector that needs one reads it itself."""


HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110, 5.1)."""


class Checked(dict[str, str]):
    """Settings with the name of their plugin, for the messages of the functions that read them."""

    plugin = ""


def check(spec: Spec, settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with defaults, all strings. Raises ConfigError on an unknown, missing or bad option.

    An option with a default of None is left out if it is not set.
    """
    out = Checked()
    out.plugin = spec.name
    for _, problem in _problems(spec, settings, out):
        raise ConfigError(problem)
    return out


def problems(spec: Spec, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns everything that `check` would raise for, in order: the option as it is written, and what is wrong."""
    return list(_problems(spec, settings, {}))


def _problems(spec: Spec, settings: Mapping[str, str], out: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields each problem as an option and what is wrong, and fills `out` with the settings."""
    exact = {o.name: o for o in spec.options if not _any_suffix(o)}
    prefixes = [o.name[:-1] for o in spec.options if o.name.endswith(".*")]
    patterns = [_pattern(o.name) for o in spec.options if "*" in o.name.removesuffix(".*")]
    ours = {o.conduit: o.name for o in spec.options if o.conduit}
    for written, value in settings.items():
        name = ours.get(written, written)
        known = name in exact or name.startswith((SDK, *prefixes)) or any(p.fullmatch(name) for p in patterns)
        if not known:
            yield written, f"{spec.name}: unknown option '{name}'; {_nearest(name, spec.options)}"
        elif name != written and name in settings:
            yield written, f"{spec.name}: option '{written}' is Conduit's name of '{name}'; keep one of them"
        else:
            out[name] = str(value)
    for option in exact.values():
        if option.required and not out.get(option.name, "").strip():
            yield option.name, f"{spec.name}: option '{option.name}' is missing: {option.help}"
        if option.default is not None:
            out.setdefault(option.name, option.default)
        chosen = out.get(option.name)
        if option.choices and chosen is not None and chosen not in option.choices:
            said = "what it is set to" if option.secret else f"'{chosen}'"
            yield option.name, f"{spec.name}: option '{option.name}' cannot be {said}; {_one_of(option.choices)}"


def integer(settings: Mapping[str, str], name: str, *, least: int = 0) -> int:
    """Reads a whole number of at least `least`. Raises ConfigError naming the option, as the other functions here."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"'{text}' is not a whole number") from None
        return _at_least(value, least, str(least))

    return _parsed(settings, name, parse)


def number(settings: Mapping[str, str], name: str, *, least: float = 0.0) -> float:
    """Reads a finite number of at least `least`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ConfigError(f"'{text}' is not a number") from None
        if not least <= value < float("inf"):
            raise ConfigError(f"it must be a number of at least {least:g}")
        return value

    return _parsed(settings, name, parse)


def boolean(settings: Mapping[str, str], name: str) -> bool:
    """Reads `true` or `false`, as YAML and Go write it."""

    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"'{text}' is neither true nor false")
        return text.lower() == "true"

    return _parsed(settings, name, parse)


def duration(settings: Mapping[str, str], name: str) -> float:
    """Returns the seconds of a duration such as `200ms`."""
    return _parsed(settings, name, parse_duration)


def size(settings: Mapping[str, str], name: str, *, least: int = 1) -> int:
    """Returns the bytes of a size such as `32MiB`."""
    return _parsed(settings, name, lambda text: _at_least(parse_size(text), least, f"{least} bytes"))


def words(settings: Mapping[str, str], name: str) -> list[str]:
    """Returns the parts of a comma-separated list, without the empty ones."""
    return [word.strip() for word in settings.get(name, "").split(",") if word.strip()]


def header(settings: Mapping[str, str], name: str) -> str:
    """Returns the name of a header in lower case; "" if it is not set."""
    found = settings.get(name, "").strip()
    if found and not HEADER.fullmatch(found):
        plugin = f"{settings.plugin}: " if isinstance(settings, Checked) else ""
        raise ConfigError(f"{plugin}option '{name}' is no name of a header")
    return found.lower()


def names(spec: Spec, settings: Mapping[str, str], name: str) -> list[str]:
    """Returns the parts of a comma-separated list of things that are each read once: at least one, and none of them
    twice."""
    found = words(settings, name)
    if not found:
        raise ConfigError(f"{spec.name}: option '{name}' names nothing: {_described(spec, name)}")
    if twice := sorted({word for word in found if found.count(word) > 1}):
        raise ConfigError(f"{spec.name}: option '{name}' names {', '.join(twice)} more than once; name each once")
    return found


def _described(spec: Spec, name: str) -> str:
    return next(option.help for option in spec.options if option.name == name)


def _parsed(settings: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(settings[name].strip())
    except ConfigError as error:
        plugin = f"{settings.plugin}: " if isinstance(settings, Checked) else ""
        raise ConfigError(f"{plugin}option '{name}': {error}") from None


def _at_least(value: int, least: int, said: str) -> int:
    if value < least:
        raise ConfigError(f"it must be at least {said}")
    return value


def _any_suffix(option: Option) -> bool:
    return "*" in option.name


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in name.split("*")))


def _nearest(name: str, options: Sequence[Option]) -> str:
    names = [o.name for o in options]
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"it takes {', '.join(names)}" if names else "it takes none"


def _one_of(choices: Sequence[str]) -> str:
    return f"it is one of {', '.join(choices)}"
