"""Way of one record through a pipeline's file, step by step: each processor, each trigger, what would be sent, and the
place in the file where it fails.

To be run in a process of its own (`operate.apart`): processors run code of users, which may not come to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from conduit_tasks.connectors.sources import attributes
from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.filters import compile_filters
from conduit_tasks.operate.fault import Fault, fault_of
from conduit_tasks.operate.places import Places
from conduit_tasks.operate.untrusted import Trust
from conduit_tasks.operate.walk import Nack, Row, Walk
from conduit_tasks.pipeline.findings import Mark
from conduit_tasks.processors import registry
from conduit_tasks.processors.chain import segments
from conduit_tasks.processors.dedupe import in_memory
from conduit_tasks.record import jsons
from conduit_tasks.record.cloudevents import view
from conduit_tasks.record.record import Record
from conduit_tasks.record.shown import MASKED, Shown
from conduit_tasks.secret_names import FIELD, OPTION
from conduit_tasks.templates import template
from conduit_tasks.topology import Destination, Node, Pipeline, Processor

Tell = Callable[[dict[str, Any]], None]
"""Function that is told of each step: before it begins (`{"begin": …}`), and when it has ended."""
REFUSED = "tried to reach the network, or to start a program: allow calls to have it do so"
EXPRESSION = 20_000
"""Characters of an expression of the file that are shown."""
SHOWN = 20
"""Records of a step that are shown, of many that were derived."""


@dataclass
class Outside:
    """Guard against reaching out of this process: `refused` is whether something tried to while `guard` was entered."""

    guard: AbstractContextManager[Any]
    refused: bool = False


@dataclass(frozen=True)
class Entry:
    """Where the record enters: a node, and the first of its processors. `sent`: the record has passed them all."""

    node: Node
    first: int = 0
    sent: bool = False


class Trial(Walk):
    """The way of one record, of which `tell` is told. `leave`: returns why a processor is left out; "": it runs.
    `variables`: values that errors and expressions show as their names. `trust`: what may run of a text of somebody who
    may not run code here; None: all."""

    def __init__(
        self,
        pipeline: Pipeline,
        tell: Tell,
        *,
        shown: Shown,
        places: Places,
        outside: Outside,
        leave: Callable[[Processor], str],
        variables: Mapping[str, str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        super().__init__(pipeline)
        self._trust = trust
        self._variables = variables or {}
        self._tell, self._shown, self._places, self._outside, self._leave = tell, shown, places, outside, leave

    def go(self, record: Record, entry: Entry) -> None:
        """Takes the record from its entry to the end. Raises ConfigError if there is no such node."""
        node, rows = entry.node, [Row(0, 0, record)]
        with in_memory():
            if node.kind == "sources":
                source = self.pipeline.source(node.id)
                every = (*attributes(source)[1], *source.processors) if not entry.first else source.processors
                self._to_the_end(self.section(every[entry.first :], rows, node))
            elif node == "processors":
                self.fan_out(self.section(self.pipeline.processors[entry.first :], rows, node))
            else:
                destination = self.pipeline.destination(node.id)
                processors = () if entry.sent else destination.processors[entry.first :]
                self.arrive(destination, self.section(processors, rows, node))

    def _to_the_end(self, rows: list[Row]) -> None:
        self.fan_out(self.section(self.pipeline.processors, rows, "processors"))

    def section(self, processors: Sequence[Processor], rows: list[Row], node: str) -> list[Row]:
        for processor in processors:
            if rows:
                rows = self._step(processor, rows, node)
        return rows

    def fan_out(self, rows: list[Row]) -> None:
        if rows:
            super().fan_out(rows)

    def arrive(self, destination: Destination, rows: list[Row]) -> None:
        super().arrive(destination, rows)
        if rows:
            self._tell({"node": destination.node, "step": "sent", "outcome": "sent", **self._made("after", rows)})

    def wanted(self, destination: Destination, rows: list[Row]) -> list[Row]:
        about: dict[str, Any] = {"node": destination.node, "step": "trigger", **self._made("before", rows)}
        try:
            matchers = [compile_filters([each]) for each in destination.filters]
        except ConfigError as error:
            number = next(n for n, each in enumerate(destination.filters) if _wrong(each))
            fault = Fault(f"trigger.filters[{number}]", jsons.dumps(destination.filters[number]).decode())
            mark = self._places.filter(destination.node, number)
            self._tell({**about, "outcome": "failed", **self._error(str(error), "config", fault, mark, destination)})
            return []
        wanted = [row for row in rows if all(m.matches(view(row.record, m.attributes)) for m in matchers)]
        outcome = "wanted" if len(wanted) == len(rows) else "wanted in part" if wanted else "not wanted"
        self._tell(
            {**about, "outcome": outcome, **self._made("after", wanted), "filters": self._why(destination, rows)}
        )
        return wanted

    def _why(self, destination: Destination, rows: list[Row]) -> list[dict[str, Any]]:
        """Returns each filter with whether the first record matches it, what that has of the attributes, and an
        error."""
        out = []
        for n, each in enumerate(destination.filters):
            matcher = compile_filters([each])
            seen = view(rows[0].record, matcher.attributes)
            names = sorted(matcher.attributes or seen)
            said = _sql_error(each, seen)
            out.append(
                {
                    "filter": self._named_within(each, destination),
                    "matches": matcher.matches(seen),
                    "attributes": {name: self._attribute(name, seen.get(name)) for name in names if name != "data"},
                    "error": None if said is None else self._shown.text(self._named(said, destination)),
                    "place": _place(self._places.filter(destination.node, n)),
                }
            )
        return out

    def _attribute(self, name: str, value: Any) -> Any:
        return MASKED if value is not None and FIELD.search(name) else self._shown.value(value)

    def _step(self, processor: Processor, rows: list[Row], node: str) -> list[Row]:
        about = {"node": node, "step": "processor", "processor": processor.id, "plugin": processor.plugin}
        about |= self._made("before", rows)
        # Processors change records in place; what came in is needed when one fails or is refused.
        kept = [Row(row.source, row.n, row.record.copy()) for row in rows]
        nacks = len(self.walked.nacks)
        self._outside.refused = False
        try:
            if why := self._leave(processor):
                return self._left_out(about, rows, why)
            self._tell({"begin": about})
            # Spark is started outside of this process.
            with nullcontext() if registry.is_frame(processor) else self._outside.guard:
                made = self.apply(segments([processor])[0], rows, node)
        except Exception as error:  # noqa: BLE001 - the user's module may fail in any way
            message = str(error) if isinstance(error, ConduitError) else f"{type(error).__name__}: {error}"
            return self._failed(about, processor, kept, Nack(node, processor.id, message, "config"))
        if self._outside.refused:
            return self._left_out(about, kept, REFUSED)
        if len(self.walked.nacks) > nacks:
            return self._failed(about, processor, kept, self.walked.nacks[-1])
        outcome = "filtered" if not made else "changed" if _texts(made) != _texts(kept) else "unchanged"
        if outcome == "unchanged" and processor.condition and _skipped(processor, kept):
            outcome = "skipped"
        self._tell({**about, "outcome": outcome, **self._made("after", made)})
        if self._trust is not None and self._trust.brings(processor):
            return [Row(row.source, row.n, self._shown.masked(row.record)) for row in made]
        return made

    def _left_out(self, about: dict[str, Any], rows: list[Row], why: str) -> list[Row]:
        self._tell({**about, "outcome": "left out", "why": why, **self._made("after", rows)})
        return rows

    def _failed(self, about: dict[str, Any], processor: Processor, rows: list[Row], nack: Nack) -> list[Row]:
        fault = fault_of(processor, [row.record for row in rows], nack.message)
        mark = self._places.processor(nack.node, processor.id, fault.key if fault else "")
        said = self._error(nack.message, nack.error_class, fault, mark, processor)
        self._tell({**about, "outcome": "failed", "after": [], "after_count": 0, **said})
        return []

    def _error(
        self, message: str, error_class: str, fault: Fault | None, mark: Mark | None, of: Processor | Destination
    ) -> dict[str, Any]:
        if fault and mark and fault.line is not None:
            mark = self._places.within(mark, fault.line, fault.column)
        return {
            "error": self._shown.text(self._named(message, of)),
            "error_class": error_class,
            "fault": {**fault.as_json(), "expression": self._expression(fault, of)} if fault else None,
            "place": _place(mark),
        }

    def _expression(self, fault: Fault, of: Processor | Destination) -> str:
        if OPTION.search(fault.key):
            return MASKED
        return self._named(fault.expression, of)[:EXPRESSION]

    def _named(self, text: str, of: Processor | Destination) -> str:
        if self._trust is not None and not self._trust.has_values(of):
            return text
        for value, name in self._variables.items():
            text = text.replace(value, name)
        return text

    def _named_within(self, value: Any, of: Destination) -> Any:
        if isinstance(value, dict):
            return {self._named_within(k, of): self._named_within(v, of) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._named_within(each, of) for each in value]
        return self._named(value, of)[:EXPRESSION] if isinstance(value, str) else value

    def _made(self, name: str, rows: Sequence[Row]) -> dict[str, Any]:
        """Returns records as they are shown, and their number."""
        some = self._shown.records([row.record.to_opencdc() for row in rows[:SHOWN]])
        return {name: some, f"{name}_count": len(rows)}


def _place(mark: Mark | None) -> dict[str, int] | None:
    return None if mark is None else {"line": mark[0], "column": mark[1]}


def _texts(rows: Sequence[Row]) -> list[bytes]:
    return [jsons.dumps(row.record.to_opencdc(), sort_keys=True) for row in rows]


def _skipped(processor: Processor, rows: Sequence[Row]) -> bool:
    condition = template.compile(processor.condition or "").condition
    return not any(condition(row.record) for row in rows)


def _wrong(filter: Any) -> bool:
    try:
        compile_filters([filter])
    except ConfigError:
        return True
    return False


def _sql_error(filter: Any, seen: dict[str, Any]) -> str | None:
    """Returns why a CloudEvents SQL expression has no result for these attributes."""
    if "sql" not in filter:
        return None
    from conduit_tasks.filters.cesql import compile_filter

    _, kind, message = compile_filter(filter["sql"]).evaluate(seen)
    return None if kind is None else f"{kind}: {message}"


def entry_of(pipeline: Pipeline, node: str) -> Entry:
    """Returns the entry at a node, "" = the only source. Raises ConfigError."""
    if not node:
        if len(pipeline.sources) > 1:
            names = ", ".join(source.node for source in pipeline.sources)
            raise ConfigError(
                f"pipeline {pipeline.id} has several sources: say at which node it enters, one of {names}"
            )
        return Entry(pipeline.sources[0].node)
    nodes = [*(s.node for s in pipeline.sources), Node("processors"), *(d.node for d in pipeline.destinations)]
    if node not in nodes:
        raise ConfigError(f"pipeline {pipeline.id} has no node {node}; a record enters at {', '.join(nodes)}")
    return Entry(Node(node))


def entry_of_letter(pipeline: Pipeline, node: str) -> Entry:
    """Returns the entry of a dead letter of this node, as a redrive has it: the processor that failed it, or the first
    one of its section where that has gone. Raises ConfigError if the section has gone."""
    section, _, failed = node.partition("/")
    entry = entry_of(pipeline, section)
    kind = entry.node.kind
    if kind == "destinations" and not failed:
        return Entry(entry.node, sent=True)
    processors = (
        pipeline.source(entry.node.id).processors
        if kind == "sources"
        else pipeline.processors
        if kind == "processors"
        else pipeline.destination(entry.node.id).processors
    )
    # The record is stored as it came to the first of the record-wise ones around it, which saw it in one pass.
    at = next((n for n, each in enumerate(processors) if each.id == failed), 0)
    while at and not registry.is_frame(processors[at]) and not registry.is_frame(processors[at - 1]):
        at -= 1
    return Entry(entry.node, at)
