"""The dialects of the CloudEvents Subscriptions API: exact, prefix, suffix, all, any, not, sql.

A filter is a map with one key, the dialect. `exact`, `prefix` and `suffix` take attribute → text; with several
attributes all must match, and an attribute that the event does not have never matches. `all` and `any` take lists of
filters, `not` one filter, `sql` a CloudEvents SQL expression (`filters.cesql`). A list of filters matches if all
of them match; an empty one matches everything.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conduit_tasks.errors import ConfigError
from conduit_tasks.filters.matcher import EVERYTHING, Matcher, View

Dialect = Callable[[Any, str], Matcher]
"""Compiler of the value under the dialect's key; the second argument is the place, for messages."""


def compile_filters(filters: Sequence[Mapping[str, Any]]) -> Matcher:
    """Returns the matcher of a trigger's filters. Raises ConfigError that names the place."""
    if isinstance(filters, Mapping) or not isinstance(filters, Sequence) or isinstance(filters, str):
        raise ConfigError("filters: a list of filters was expected, each a map with one dialect")
    return _all([_filter(each, f"filters[{n}]") for n, each in enumerate(filters)])


def _filter(value: Any, place: str) -> Matcher:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ConfigError(f"{place}: a filter is a map with exactly one of {', '.join(DIALECTS)}")
    [(name, content)] = value.items()
    dialect = DIALECTS.get(name)
    if dialect is None:
        near = difflib.get_close_matches(str(name), DIALECTS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{place}: there is no dialect {name!r}; {hint}known are {', '.join(DIALECTS)}")
    return dialect(content, f"{place}.{name}")


def _by_attribute(test: Callable[[str, str], bool]) -> Dialect:
    def dialect(content: Any, place: str) -> Matcher:
        if not isinstance(content, Mapping) or not content:
            raise ConfigError(f"{place}: a map of attributes to texts was expected, for example {{type: flight}}")
        pairs = []
        for attribute, wanted in content.items():
            if not isinstance(attribute, str) or not attribute:
                raise ConfigError(f"{place}: {attribute!r} is no attribute's name")
            if attribute == "data":
                raise ConfigError(f"{place}: data is no attribute; set an extension from the payload by a processor")
            if not isinstance(wanted, str) or not wanted:
                raise ConfigError(f"{place}.{attribute}: a text that is not empty was expected; quote it in YAML")
            pairs.append((attribute, wanted))

        def matches(view: View) -> bool:
            for attribute, wanted in pairs:
                value = view.get(attribute)
                if value is None or not test(value if value.__class__ is str else _text(value), wanted):
                    return False
            return True

        return Matcher(frozenset(attribute for attribute, _ in pairs), matches)

    return dialect


def _text(value: Any) -> str:
    """Returns an attribute's canonical text (CloudEvents 1.0, "Type System")."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _several(combine: Callable[[Sequence[Matcher]], Matcher]) -> Dialect:
    def dialect(content: Any, place: str) -> Matcher:
        if not isinstance(content, Sequence) or isinstance(content, str) or not content:
            raise ConfigError(f"{place}: a list of at least one filter was expected")
        return combine([_filter(each, f"{place}[{n}]") for n, each in enumerate(content)])

    return dialect


def _read(matchers: Iterable[Matcher]) -> frozenset[str] | None:
    names: frozenset[str] = frozenset()
    for each in matchers:
        if each.attributes is None:
            return None
        names |= each.attributes
    return names


def _all(matchers: Sequence[Matcher]) -> Matcher:
    if not matchers:
        return EVERYTHING
    if len(matchers) == 1:
        return matchers[0]
    tests = [each.matches for each in matchers]
    return Matcher(_read(matchers), lambda view: all(test(view) for test in tests))


def _any(matchers: Sequence[Matcher]) -> Matcher:
    tests = [each.matches for each in matchers]
    return Matcher(_read(matchers), lambda view: any(test(view) for test in tests))


def _not(content: Any, place: str) -> Matcher:
    inner = _filter(content, place)
    test = inner.matches
    return Matcher(inner.attributes, lambda view: not test(view))


def _sql(content: Any, place: str) -> Matcher:
    # The parser is imported only if the dialect is used: DAG files import this module.
    from conduit_tasks.filters.cesql import ParseError, compile_filter

    if not isinstance(content, str):
        raise ConfigError(f"{place}: an expression was expected, a text such as \"type = 'flight'\"; quote it in YAML")
    try:
        expression = compile_filter(content)
    except ParseError as error:
        raise ConfigError(f"{place}: {error}") from None
    return Matcher(expression.attributes, expression.matches)


DIALECTS: dict[str, Dialect] = {
    "exact": _by_attribute(lambda value, wanted: value == wanted),
    "prefix": _by_attribute(str.startswith),
    "suffix": _by_attribute(str.endswith),
    "all": _several(_all),
    "any": _several(_any),
    "not": _not,
    "sql": _sql,
}
"""name → compiler; another dialect is one more line here."""
