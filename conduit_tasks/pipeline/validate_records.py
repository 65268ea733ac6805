"""Tries conditions, templates and trigger filters on the first records of sources that this machine can read by itself.

Warns of a condition, template, processor or filter that fails on every record, and of a field or attribute that no
record has while another has a similar name: a misspelling is found before the first run. Uses no network and changes
nothing: only processors that just compute are run, and checks end at any other processor.
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from conduit_tasks.connectors.sources import attributes
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.pipeline.findings import Findings, Path
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Destination, Pipeline, Processor, Source

log = logging.getLogger(__name__)

RECORDS, BYTES, SECONDS = 100, 1 << 20, 3.0
"""Limits of the records, bytes and seconds spent on one source."""
CODE = "W206"
COMPUTING = frozenset(
    {
        *("base64.decode", "base64.encode", "clone", "error", "field.convert", "field.exclude", "field.rename"),
        *("field.set", "filter", "json.decode", "json.encode", "mask", "split"),
        *("unwrap.debezium", "unwrap.kafkaconnect", "unwrap.opencdc"),
    }
)
"""Processors whose result depends on the record alone and that have no side effects."""
_FIELD = re.compile(r"(?<![\w)\]])\.(Key|Metadata|Payload\.(?:Before|After))\.(\w+)")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"?|`[^`]*+`?', re.DOTALL)


def try_records(pipeline: Pipeline, ids: Sequence[str], report: Findings, base: Path) -> None:
    """Reports conditions, templates, processors and filters that do not fit the records. `ids`: ids of the connectors
    in file order. Raises no ConduitError: the check of this pipeline then ends, and the error is logged."""
    try:
        _Trial(pipeline, {id: (*base, "connectors", n) for n, id in enumerate(ids)}, report, base).all()
    except ConduitError as error:
        log.debug("%s: its records are not looked at: %s", pipeline.id, error)


@dataclass
class _Trial:
    pipeline: Pipeline
    places: Mapping[str, Path]
    report: Findings
    base: Path

    def all(self) -> None:
        known: list[list[Record] | None] = []
        for source in self.pipeline.sources:
            records = first_records(self.pipeline, source)
            path = self.places[source.id]
            if records:
                records = self._section(attributes(source)[1], records, path, settings=True)
                records = self._section(source.processors, records, path) if records is not None else None
            known.append(records)
        if not all(known):
            return  # a source without known records may have the fields that the others lack
        records = self._section(self.pipeline.processors, list(chain.from_iterable(r or () for r in known)), self.base)
        if not records:
            return
        for destination in self.pipeline.destinations:
            path = self.places[destination.id]
            if wanted := self._wanted(destination, records, path):
                self._section(destination.processors, [record.copy() for record in wanted], path)

    def _wanted(self, destination: Destination, records: Sequence[Record], path: Path) -> list[Record]:
        from conduit_tasks.filters import compile_filters
        from conduit_tasks.record.cloudevents import view

        known = set(chain.from_iterable(view(record) for record in records))
        for n, one in enumerate(destination.filters):
            for name in sorted(compile_filters([one]).attributes or ()):
                if name not in known and (near := difflib.get_close_matches(name, known, n=1, cutoff=0.7)):
                    place = (*path, "trigger", "filters", n)
                    self._warn(
                        place, f"none of {_many(records)} has the attribute '{name}'", f"did you mean '{near[0]}'?"
                    )
        matcher = compile_filters(destination.filters)
        return [r for r in records if matcher.always or matcher.matches(view(r, matcher.attributes))]

    def _section(
        self, processors: Sequence[Processor], records: list[Record], path: Path, *, settings: bool = False
    ) -> list[Record] | None:
        """Returns the records after these processors; None: unknown. `settings`: the processors stand for templates in
        the settings."""
        for n, processor in enumerate(processors):
            place = (*path, "settings", processor.id.partition(":")[2]) if settings else (*path, "processors", n)
            if not records:
                return records
            through = self._holding(processor, records, place)
            if through is None or processor.plugin not in COMPUTING:
                return None
            self._spelled(processor, through, place)
            made = self._processed(processor, through, place)
            if made is None:
                return None
            by_record = {id(record): out for record, out in zip(through, made, strict=True)}
            records = list(chain.from_iterable(by_record.get(id(record), [record]) for record in records))
        return records

    def _holding(self, processor: Processor, records: list[Record], place: Path) -> list[Record] | None:
        """Returns the records for which the condition holds; None if it can be evaluated for none."""
        if not processor.condition:
            return records
        from conduit_tasks.templates import template

        self._unknown(processor.condition, records, (*place, "condition"))
        condition = template.compile(processor.condition).condition
        held, failed = self._each(records, condition)
        if failed is not None:
            self._fails((*place, "condition"), records, failed)
            return None
        return [record for record, holds in zip(records, held, strict=True) if holds is True]

    def _processed(self, processor: Processor, records: list[Record], place: Path) -> list[list[Record]] | None:
        from conduit_tasks.processors import registry

        built: Any = registry.build(replace(processor, condition=None))
        try:
            out, failed = self._each(records, lambda record: built.process(record.copy()))
        finally:
            built.close()
        if failed is not None:
            if processor.plugin != "error":
                self._fails(place, records, failed)
            return None
        lists = [made if isinstance(made, list) else [] if made is None else [made] for made in out]
        return [[record for record in made if isinstance(record, Record)] for made in lists]

    def _spelled(self, processor: Processor, records: list[Record], place: Path) -> None:
        for name, value in processor.settings.items():
            if "{{" in value:
                written = (*place, "settings", name)
                self._unknown(value, records, written if written in self.report.keys else place)

    def _unknown(self, text: str, records: list[Record], place: Path) -> None:
        """Warns of fields in a template that no record has, if a record has a field of a similar name."""
        for part, field in sorted(_fields(text)):
            known = set(chain.from_iterable(_names(record, part) for record in records))
            if field not in known and (near := difflib.get_close_matches(field, known, n=1, cutoff=0.7)):
                said = f"none of {_many(records)} has the field '.{part}.{field}'"
                self._warn(place, said, f"did you mean '{near[0]}'?")

    def _fails(self, place: Path, records: Sequence[Record], error: str) -> None:
        if not any(path == place and found.code == CODE for path, found in self.report.found):
            self._warn(
                place, f"it fails on all of {_many(records)}: {error}", "see `conduit processors try`, and fix it"
            )

    def _warn(self, place: Path, message: str, hint: str) -> None:
        self.report.add(CODE, place, message, hint)

    @staticmethod
    def _each(records: Iterable[Record], call: Callable[[Record], Any]) -> tuple[list[Any], str | None]:
        """Returns the result of `call` for each record (None if it fails), and the first error if it fails on all."""
        out: list[Any] = []
        errors: list[str] = []
        for record in records:
            try:
                out.append(call(record))
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - any error nacks the record
                errors.append(str(error))
                out.append(None)
        return out, errors[0] if errors and len(errors) == len(out) else None


def first_records(pipeline: Pipeline, source: Source) -> list[Record] | None:
    """Reads the first records of a source, as its processors see them; None if it is not local, fails, or is not read
    in time."""
    from conduit_tasks.connectors.registry import source_class

    if not source_class(source.plugin).local:
        return None
    found: list[Record] = []
    done = threading.Event()

    def read() -> None:
        try:
            found.extend(_read(pipeline, source))
            done.set()
        except Exception as error:  # noqa: BLE001 - a run reports the error
            log.debug("%s is not looked at: %s", source.node, error)

    # A read that hangs (a pipe that nobody writes to) is left behind.
    thread = threading.Thread(target=read, name=f"first records of {source.id}", daemon=True)
    thread.start()
    thread.join(SECONDS)
    return found if done.is_set() else None


def _read(pipeline: Pipeline, source: Source) -> list[Record]:
    from conduit_tasks.connectors.base import Limit
    from conduit_tasks.connectors.sources import source_connector, source_origins
    from conduit_tasks.record.schema import to_records

    connector = source_connector(pipeline, source.id)
    out: list[Record] = []
    try:
        slices = connector.plan({}, Limit(RECORDS, BYTES))
        for slice, origin in zip(slices, source_origins(pipeline, source, slices)[0], strict=True):
            for batch in connector.read(slice):
                out += to_records(batch.slice(0, RECORDS - len(out)), origin)
                if len(out) >= RECORDS:
                    return out
    finally:
        connector.close()
    # A record that cannot be decoded is nacked before any processor sees it.
    return [record for record in out if "conduit.error" not in record.metadata]


def _fields(text: str) -> set[tuple[str, str]]:
    """Returns each (part of the record, field in it) that a template names."""
    actions = "".join(_TEXT.sub('""', action) for action in _actions(text))
    return {(found[1], found[2]) for found in _FIELD.finditer(actions)}


def _actions(text: str) -> Iterable[str]:
    begin = text.find("{{")
    while begin >= 0 and (end := text.find("}}", begin)) >= 0:
        yield text[begin:end]
        begin = text.find("{{", end)


def _names(record: Record, part: str) -> Iterable[str]:
    if part == "Metadata":
        return record.meta()
    value = {"Key": record.key, "Payload.Before": record.before, "Payload.After": record.after}[part]
    return value if isinstance(value, Mapping) else ()


def _many(records: Sequence[Record]) -> str:
    return "the first record" if len(records) == 1 else f"the first {len(records)} records"
