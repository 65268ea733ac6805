"""A changed pipeline file of somebody who may look, but not run code here: what of it may run.

A text may name any function, file, address and variable. So variables of the environment stay names, and a processor
runs only if its result depends on the record alone, or if the file in force has it with the same settings: then it runs
anyway, with those.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from conduit_tasks.pipeline.load import load_text
from conduit_tasks.pipeline.validate_records import COMPUTING
from conduit_tasks.record import jsons
from conduit_tasks.topology import Destination, Pipeline, Processor

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


def trusted(changed: Pipeline, force: Pipeline) -> tuple[Pipeline, Callable[[Processor], str]]:
    """Returns the changed pipeline with the values in force where it has the same processors and filters, and the
    function that says why a processor must not run; "": it may. `changed`: loaded with `Names`."""
    text = Path(force.file).read_text(encoding="utf-8-sig")
    named = next((p for p in load_text(text, force.file, env=Names()).pipelines if p.id == force.id), None)
    real = {_key(n): r for n, r in zip(processors_of(named), processors_of(force), strict=True)} if named else {}
    filters = {(d.id, _text(d)): r.filters for d, r in zip(named.destinations, force.destinations)} if named else {}

    def known(processors: tuple[Processor, ...]) -> tuple[Processor, ...]:
        return tuple(replace(p, settings=real[_key(p)].settings) if _key(p) in real else p for p in processors)

    allowed = {_key(p) for p in processors_of(force)}

    def why(processor: Processor) -> str:
        return "" if _key(processor) in allowed or _alone(processor) else WHY

    return (
        replace(
            changed,
            sources=tuple(replace(s, processors=known(s.processors)) for s in changed.sources),
            processors=known(changed.processors),
            destinations=tuple(
                replace(d, processors=known(d.processors), filters=filters.get((d.id, _text(d)), d.filters))
                for d in changed.destinations
            ),
        ),
        why,
    )


def processors_of(pipeline: Pipeline) -> list[Processor]:
    """Returns all processors of a pipeline."""
    found = [*(s.processors for s in pipeline.sources), pipeline.processors]
    found += [d.processors for d in pipeline.destinations]
    return [processor for section in found for processor in section]


def _text(destination: Destination) -> bytes:
    return jsons.dumps(list(destination.filters), sort_keys=True)


def _key(processor: Processor) -> tuple[str, frozenset[tuple[str, str]]]:
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
