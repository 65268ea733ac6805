"""A changed pipeline file of somebody who may look, but not run code here: what of it may run.

A text may name any function, file, address and variable. So variables of the environment stay names, and a processor
runs only if its result depends on the record alone, or if the file in force has it with the same settings: then it runs
anyway, with those.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conduit_tasks.pipeline.load import load_text
from conduit_tasks.pipeline.validate_records import COMPUTING
from conduit_tasks.record import jsons
from conduit_tasks.topology import Destination, Pipeline, Processor

Key = tuple[str, frozenset[tuple[str, str]]]
"""A processor's plugin and settings."""
WHY = (
    "is not in the file in force with these settings, and a changed text runs only what depends on the record alone: "
    "`conduit records try --file` runs it"
)


class Names(Mapping[str, str]):
    """The environment, each variable with its own name as `${NAME}` for its value."""

    def __getitem__(self, name: str) -> str:
        if name not in os.environ:
            raise KeyError(name)
        return f"${{{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


@dataclass(frozen=True)
class Trust:
    """Parts of a changed text that may run. `force`: keys of the processors in force; `valued`: those of them, and the
    ids of the destinations, that run with values of variables in their settings or filters."""

    force: frozenset[Key]
    valued: frozenset[Key | str]

    def why(self, processor: Processor) -> str:
        """Returns why a processor must not run; "": it may."""
        return "" if _key(processor) in self.force or _alone(processor) else WHY

    def brings(self, processor: Processor) -> bool:
        """Returns whether it may bring something into a record that whoever asks does not have: what is to be masked
        of that must be masked before the next processor, which may encode it."""
        return _key(processor) in self.valued or not _alone(processor)

    def has_values(self, of: Processor | Destination) -> bool:
        """Returns whether a processor, or a destination's trigger, holds values of variables."""
        return (of.id if isinstance(of, Destination) else _key(of)) in self.valued


def trusted(changed: Pipeline, force: Pipeline) -> tuple[Pipeline, Trust]:
    """Returns the changed pipeline with the values in force where it has the same processors and filters, and what of
    it may run. `changed`: loaded with `Names`."""
    text = Path(force.file).read_text(encoding="utf-8-sig")
    named = next((p for p in load_text(text, force.file, env=Names()).pipelines if p.id == force.id), None)
    real = {_key(n): r for n, r in zip(processors_of(named), processors_of(force), strict=True)} if named else {}
    filters = {(d.id, _text(d)): r.filters for d, r in zip(named.destinations, force.destinations)} if named else {}

    def known(processors: tuple[Processor, ...]) -> tuple[Processor, ...]:
        return tuple(replace(p, settings=real[_key(p)].settings) if _key(p) in real else p for p in processors)

    destinations = tuple(
        replace(d, processors=known(d.processors), filters=filters.get((d.id, _text(d)), d.filters))
        for d in changed.destinations
    )
    valued: set[Key | str] = {_key(r) for key, r in real.items() if key != _key(r)}
    valued |= {d.id for d, was in zip(destinations, changed.destinations) if d.filters != was.filters}
    return (
        replace(
            changed,
            sources=tuple(replace(s, processors=known(s.processors)) for s in changed.sources),
            processors=known(changed.processors),
            destinations=destinations,
        ),
        Trust(frozenset(map(_key, processors_of(force))), frozenset(valued)),
    )


def processors_of(pipeline: Pipeline) -> list[Processor]:
    """Returns all processors of a pipeline."""
    found = [*(s.processors for s in pipeline.sources), pipeline.processors]
    found += [d.processors for d in pipeline.destinations]
    return [processor for section in found for processor in section]


def _text(destination: Destination) -> bytes:
    return jsons.dumps(list(destination.filters), sort_keys=True)


def _key(processor: Processor) -> Key:
    return processor.plugin, frozenset(processor.settings.items())


def _alone(processor: Processor) -> bool:
    """Returns whether its result depends on the record alone: no file, no variable, no function is named."""
    if processor.plugin == "mask":
        return processor.settings.get("method") != "hash"
    if processor.plugin == "custom.javascript":
        return "script.path" not in processor.settings
    if processor.plugin == "schema.check":
        return "schema.path" not in processor.settings
    return processor.plugin in COMPUTING or processor.plugin == "dedupe"
