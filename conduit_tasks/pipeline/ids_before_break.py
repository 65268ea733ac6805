"""Ids of pipelines that a broken file names before the error: another file must not use them as if they were free.

Only broken files are read here, so that a valid file is parsed once. The events of both YAML libraries up to the error
are used: each can read on in places where the other one stops.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

DEPTH, EVENTS, LONGEST = 64, 100_000, 4 << 20
"""Limits of nested lists and maps, of events and of characters: no valid file has more."""
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_STRANGE = re.compile("[^\t\n\r\\x20-\\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow: both libraries refuse them before they read the text around them."""
_NODES = frozenset({"ScalarEvent", "AliasEvent", "MappingStartEvent", "SequenceStartEvent"})
"""Names of node events: the classes of the two libraries share no base."""


class Named(NamedTuple):
    """An id as written, variables not expanded, and the line where its pipeline begins, from 1."""

    id: str
    line: int


@dataclass
class _Level:
    """An open list or map. `begun`: nodes in it so far; `key`: of a map, the key whose value comes next or is open."""

    map: bool
    line: int
    begun: int = 0
    key: str | None = None


def ids_before_break(text: str, whole: int = 0) -> list[Named]:
    """Returns the ids in a broken file, after its first `whole` documents, which could be read. Never raises."""
    if strange := _STRANGE.search(text, 0, LONGEST):
        text = text[: strange.start()]
    text = text[:LONGEST]
    found: dict[tuple[int, int], Named] = {}
    try:
        for place, named in _ids(yaml.parse(text, Loader=yaml.CSafeLoader), whole):
            found.setdefault(place, named)
    except yaml.YAMLError:
        for place, named in _ids(_events(text), whole):
            found.setdefault(place, named)
    return list(found.values())


def _events(text: str) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield from YAML(typ="safe", pure=True).parse(io.StringIO(text))
        except YAMLError:
            return


def _ids(events: Iterable[Any], whole: int) -> Iterator[tuple[tuple[int, int], Named]]:
    """Yields each id with its place: the number of the document, and of the pipeline in it."""
    document = -1
    anchors: dict[str, str | None] = {}
    levels: list[_Level] = []
    for event in islice(events, EVENTS):
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            document += 1
            anchors.clear()
        elif kind not in _NODES:
            del levels[-1:]
        else:
            text = anchors.get(event.anchor) if kind == "AliasEvent" else _text(event)
            if kind != "AliasEvent" and event.anchor:
                anchors[event.anchor] = text
            if levels:
                level = levels[-1]
                if level.map and level.begun % 2 == 0:
                    level.key = text
                elif text and document >= whole and _is_id(levels):
                    yield (document, levels[1].begun), Named(text, level.line)
                level.begun += 1
            if kind.endswith("StartEvent"):
                levels.append(_Level(kind == "MappingStartEvent", event.start_mark.line + 1))
                if len(levels) > DEPTH:
                    return


def _text(event: Any) -> str | None:
    value = getattr(event, "value", None)
    return None if value is None or (not event.style and value in _NULLS) else str(value)


def _is_id(levels: list[_Level]) -> bool:
    """Returns whether the next node is the value of pipelines[n].id."""
    if len(levels) != 3:
        return False
    root, pipelines, pipeline = levels
    return root.key == "pipelines" and not pipelines.map and pipeline.map and pipeline.key == "id"
