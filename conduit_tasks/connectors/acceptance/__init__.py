"""The acceptance suite: checks on the real system that a connector keeps the contract of `connectors/base.py`.

`conduit connectors test NAME` runs it; a test of one's own is three lines:

```python
def test_the_connector_keeps_its_contract(tmp_path):
    both = {"path": str(tmp_path / "events.jsonl")}
    accept("mine", source=both, destination=both).require()
```

It writes records and acks what it reads: use a test system with at most a few thousand records. If both sides are
given, they must be of the same system: the source reads what the destination wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conduit_tasks.connectors.acceptance.destination import ReadBack, Writer, destination_checks
from conduit_tasks.connectors.acceptance.queue import queue_checks
from conduit_tasks.connectors.acceptance.records import Marked
from conduit_tasks.connectors.acceptance.report import Check, Checks, Report
from conduit_tasks.connectors.acceptance.settings import settings_checks
from conduit_tasks.connectors.acceptance.source import maker, source_checks
from conduit_tasks.connectors.base import BatchDestination, RecordDestination, Source, Spec
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Record

__all__ = ["Check", "Report", "accept"]

RECORDS = 100
"""Records that are written, by default."""
WAIT = 10.0
"""Seconds in which written records must become readable, and unacked messages of a queue come again, by default."""


def accept(
    connector: Any,
    settings: Mapping[str, str] | None = None,
    *,
    source: Mapping[str, str] | None = None,
    destination: Mapping[str, str] | None = None,
    feed: Callable[[Sequence[Record]], None] | None = None,
    read_back: Callable[[], Iterable[Any]] | None = None,
    records: int = RECORDS,
    wait: float = WAIT,
) -> Report:
    """Tests one connector, and reports on every promise.

    `connector`: its name, or a module (any object) with `SOURCE`, `DESTINATION` or both. `settings`: for both sides,
    each takes the options it knows; `source`, `destination`: for one side. A side is left out if only the other is
    given. `feed` writes records into the system of the source, if there is no destination to write them. `read_back`
    returns all records of the destination (records, text, bytes or JSON values), if there is no source to read them.

    Raises ConfigError if there is nothing to test, or if an option of `settings` belongs to neither side.
    """
    sides = _sides(connector)
    name = connector if isinstance(connector, str) else next(iter(sides.values())).spec.name
    given = {"source": source, "destination": destination}
    if any(given[side] is not None for side in given):
        sides = {side: cls for side, cls in sides.items() if given[side] is not None or settings is not None}
    if not sides:
        raise ConfigError(f"connector '{name}': it has no such side; `conduit connectors describe` shows what it has")
    _all_known(name, settings or {}, [cls.spec for cls in sides.values()])
    said = {side: {**_known(settings or {}, cls.spec), **(given[side] or {})} for side, cls in sides.items()}
    return Report(name, _checks(sides, said, feed=feed, read_back=read_back, records=records, wait=wait))


def _checks(
    sides: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, str]],
    *,
    feed: Callable[[Sequence[Record]], None] | None,
    read_back: ReadBack | None,
    records: int,
    wait: float,
) -> list[Check]:
    made: list[Check] = []
    marked = Marked()
    put = feed
    if "destination" in sides:
        checks = Checks("destination", made)
        settings_checks(checks, sides["destination"], settings["destination"])
        if not any(check.passed is False for check in made):
            writer = Writer(sides["destination"], settings["destination"])
            destination_checks(checks, writer, marked, records, read_back, source="source" in sides)
            put = put or writer.write
    if "source" in sides:
        checks = Checks("source", made)
        settings_checks(checks, sides["source"], settings["source"])
        if not any(check.passed is False for check in made if check.side == "source"):
            if feed is not None and not marked.made:
                feed(marked.records(records))
            judge = queue_checks if issubclass(sides["source"], Queue) else source_checks
            judge(checks, maker(sides["source"], settings["source"]), marked, put, wait)
    return made


def _sides(connector: Any) -> dict[str, Any]:
    """Returns side → class."""
    from conduit_tasks.connectors import registry

    if isinstance(connector, str):
        found = registry.described(connector)
        classes: dict[str, Any] = {"source": found.source, "destination": found.destination}
    else:
        classes = {side: getattr(connector, side.upper(), None) for side in ("source", "destination")}
    kinds: dict[str, Any] = {"source": Source, "destination": RecordDestination | BatchDestination}
    for side, cls in classes.items():
        if cls is not None and not (isinstance(cls, type) and issubclass(cls, kinds[side])):
            raise ConfigError(f"{side.upper()} of {connector!r} is not a class of connectors.base")
    return {side: cls for side, cls in classes.items() if cls is not None}


def _known(settings: Mapping[str, str], spec: Spec) -> dict[str, str]:
    exact = {option.name for option in spec.options}
    prefixes = tuple(option.name[:-1] for option in spec.options if option.name.endswith("*"))
    return {name: value for name, value in settings.items() if name in exact or name.startswith(prefixes or ("\0",))}


def _all_known(name: str, settings: Mapping[str, str], specs: Sequence[Spec]) -> None:
    unknown = settings.keys() - {known for spec in specs for known in _known(settings, spec)}
    if unknown:
        raise ConfigError(
            f"connector '{name}' has no option '{min(unknown)}'; `conduit connectors describe {name}` shows what it has"
        )
