"""The process in which a record is tried: reads the question from stdin, keeps out of the network, bounds its memory,
and writes an object for each step to stdout.

Started by `operate.apart`, which ends it when its time is over.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import orjson

from conduit_tasks.errors import ConduitError, ConfigError
from conduit_tasks.operate.ask import WRITTEN, Ask
from conduit_tasks.operate.places import Places, variables
from conduit_tasks.operate.trying import Entry, Outside, Tell, Trial, entry_of, entry_of_letter
from conduit_tasks.operate.untrusted import Names, Trust, processors_of, trusted
from conduit_tasks.operate.walk import origin_of
from conduit_tasks.parent import end_with_parent
from conduit_tasks.pipeline.load import LoadResult, get_pipeline, load_text
from conduit_tasks.processors import registry
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record
from conduit_tasks.record.shown import Shown
from conduit_tasks.record.written import read
from conduit_tasks.topology import Pipeline, Processor

MEMORY = 2 << 30
"""Bytes that the process may hold, where it starts no JVM."""
EVENTS = frozenset(
    {
        *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
    }
)
"""Events of the interpreter that reach out of the process."""


class Guard:
    """Refuses, while it is entered, what reaches out; the code that tries gets a PermissionError. What is reached
    through libraries in C is not seen."""

    def __init__(self) -> None:
        self.on = False
        self.outside = Outside(self)
        sys.addaudithook(self._look)

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False

    def _look(self, event: str, _: Any) -> None:
        if self.on and event in EVENTS:
            self.outside.refused = True
            raise PermissionError(f"{event} is left out where a record is only tried")


def run(ask: Ask, tell: Tell, outside: Outside) -> None:
    """Tells of each step, after `{"pipeline": …}`. Raises ConduitError."""
    names: Mapping[str, str] = os.environ
    trust: Trust | None = None
    force: Pipeline | None = None
    mask: tuple[str, ...] = ()
    if ask.text is None:
        pipeline = get_pipeline(ask.pipeline)
        text = Path(pipeline.file).read_text(encoding="utf-8-sig")
    elif ask.own:
        text = ask.text
        pipeline = _loaded(load_text(text, ask.file, env=names), ask, tell)
    else:
        text, names = ask.text, Names()
        force = get_pipeline(ask.pipeline)
        pipeline, trust = trusted(_loaded(load_text(text, ask.file, env=names), ask, tell), force)
        # A text without the key must not show what the file in force does not.
        mask = force.mask
    shown = Shown(tuple(dict.fromkeys((*pipeline.mask, *mask))))
    if ask.last is not None:
        tell({"peek": _last(ask, pipeline, outside)})
        return
    record, entry = _record(ask, pipeline, force or pipeline)
    if trust is not None and ask.record is None:
        # It belongs to the pipeline, not to whoever asks: a changed text could encode what is masked, or ask for it.
        record = shown.masked(record)
    if ask.frames and any(_is_frame(processor) for processor in processors_of(pipeline)):
        # A JVM needs more, and writes what it likes.
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
            resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)

    def leave(processor: Processor) -> str:
        return _left_out(processor, ask, trust)

    tell({"pipeline": pipeline.id, "entry": {**asdict(entry), "node": str(entry.node)}, "record": record.id})
    # Not of a text of others: which of its words are values of variables is not for them to learn.
    values = variables(text if force is None else Path(force.file).read_text(encoding="utf-8-sig"))
    trial = Trial(
        pipeline,
        tell,
        shown=shown,
        places=Places(text, pipeline.id, names),
        outside=outside,
        leave=leave,
        variables=values,
        trust=trust,
    )
    trial.go(record, entry)
    tell({"end": True, "cut": shown.cut})


def _last(ask: Ask, pipeline: Pipeline, outside: Outside) -> dict[str, Any]:
    """Returns the last records of a stage, each with what the processors after it make of it, step by step."""
    from conduit_tasks.operate.peek import peek, staged
    from conduit_tasks.operate.stage_steps import maker

    nodes, processor = staged(pipeline, ask.node)
    made = maker(pipeline, nodes[0], outside, lambda each: _left_out(each, ask, None), processor)
    return peek(pipeline, ask.node, ask.last or 0, made)


def _is_frame(processor: Processor) -> bool:
    try:
        return registry.is_frame(processor)
    except ConfigError:
        return False  # said where it is tried


def _loaded(result: LoadResult, ask: Ask, tell: Tell) -> Pipeline:
    for pipeline in result.pipelines:
        if pipeline.id == ask.pipeline:
            return pipeline
    if result.errors:
        tell({"findings": [finding.to_dict() for finding in result.findings]})
        raise ConfigError(f"{result.errors[0]}; {result.errors[0].hint}")
    known = ", ".join(p.id for p in result.pipelines) or "none"
    raise ConfigError(f"{ask.file} has no pipeline {ask.pipeline}; it has: {known}")


def _record(ask: Ask, pipeline: Pipeline, stored: Pipeline) -> tuple[Record, Entry]:
    """Returns the record and where it enters. `stored`: the pipeline whose spool is read."""
    if ask.place is not None:
        from conduit_tasks.operate.peek import Place, spooled

        record, entry = spooled(pipeline, Place.read(ask.place), stored)
        return record, entry_of(pipeline, ask.node) if ask.node else entry
    if ask.letter is not None:
        record, node = _letter(ask.pipeline, ask.letter)
        entry = entry_of(pipeline, ask.node) if ask.node else entry_of_letter(pipeline, node)
        return record, entry
    entry = entry_of(pipeline, ask.node)
    source = pipeline.source(entry.node.id) if entry.node.kind == "sources" else pipeline.sources[0]
    try:
        value = jsons.loads(ask.record or "")
    except jsons.JSONDecodeError as error:
        raise ConfigError(f"the record is no JSON: {error}; write {_EXAMPLE}") from None
    try:
        record = read(value, origin_of(pipeline, source))
    except ValueError as error:
        raise ConfigError(f"it is no OpenCDC record: {error}; write {_EXAMPLE}") from None
    for part in ("key", "before", "after"):
        if fault := jsons.fault(getattr(record, part)):
            raise ConfigError(f"the record's {part}: {fault}")
    record.position = record.position or b"1"
    return record, entry


_EXAMPLE = '{"payload": {"after": {"name": "value"}}}: a text is raw data, an object structured data'


def _letter(pipeline: str, wanted: list[Any]) -> tuple[Record, str]:
    """Returns the record of a dead letter, and the node that failed it. `wanted`: [its id], or destination and key."""
    import pyarrow.compute as pc

    from conduit_tasks.dead_letters.book import rows_of
    from conduit_tasks.dead_letters.columns import Columns
    from conduit_tasks.dead_letters.store import DeadLetterStore, as_field
    from conduit_tasks.settings import settings

    root = settings().path(settings().dead_letters)
    store = DeadLetterStore(root, pipeline)
    destination, *key = wanted if len(wanted) > 1 else (None, None)
    if destination is not None and not key[0]:
        row = store.live(destination, *key[1:])
        rows = [] if row is None else [row]
    else:
        look = Columns(root, pipeline, destination).look()
        name, value = ("id", wanted[0]) if destination is None else ("field", as_field(tuple(key)))
        rows = rows_of(look.letters.filter(pc.equal(look.letters[name], value)), look.paths)
    if not rows:
        raise ConfigError(
            f"{pipeline} has no dead letter {'/'.join(map(str, wanted))}; `conduit dead-letters list {pipeline}` has "
            "their ids"
        )
    [letter] = store.load([max(rows, key=lambda row: row["at"])])
    return letter.record, letter.node


def _left_out(processor: Processor, ask: Ask, trust: Trust | None) -> str:
    """Returns why a processor is left out; "": it runs. Raises ConfigError if there is no such plugin."""
    # Asked first: a plugin of another package runs code as it is loaded.
    if trust is not None and (why := trust.why(processor)):
        return why
    cls = registry.variant(processor.plugin, processor.settings)
    if not issubclass(cls, RecordProcessor):
        if ask.frames:
            return ""
        return "sees a whole micro-batch, in Spark: `conduit records try` runs it"
    said = cls.asks(processor.settings)
    return f"{said}: allow calls to have it do so" if said and not ask.calls else ""


def answer(asked: bytes, out: IO[bytes], guard: Callable[[], Outside]) -> None:
    """Answers one question, the JSON of an `Ask`, by a line for each step."""
    told = 0

    def tell(said: dict[str, Any]) -> None:
        nonlocal told
        line = orjson.dumps(jsons.with_digits(said), default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n"
        told += len(line)
        if told > WRITTEN and "error" not in said:
            raise ConfigError(f"the answer has more than {WRITTEN >> 20} MiB: try a smaller record")
        out.write(line)
        out.flush()

    ask = Ask(**orjson.loads(asked))
    try:
        run(ask, tell, Outside(nullcontext()) if ask.calls else guard())
    except ConduitError as error:
        tell({"error": str(error)})


def main() -> None:
    end_with_parent()
    # What code of users prints must not get between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # What code of users logs goes into a file as well.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * WRITTEN, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    answer(sys.stdin.buffer.read(), out, lambda: Guard().outside)


if __name__ == "__main__":
    main()
