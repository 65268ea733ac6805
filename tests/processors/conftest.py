"""What processor tests share: quick records."""

from __future__ import annotations

from typing import Any

from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.result import Result
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.topology import Processor

ORIGIN = Origin("flights", "departures", "", {"opencdc.readAt": "1700000000000000000", "kind": "flight"})


def record(after: Any = None, **more: Any) -> Record:
    return Record(more.pop("position", b"1"), after=after, origin=more.pop("origin", ORIGIN), **more)


def step(plugin: str, condition: str | None = None, /, id: str | None = None, **settings: str) -> Processor:
    return Processor(id or plugin, plugin, {k.replace("_", "-"): v for k, v in settings.items()}, condition)


def run(subject: Record, *steps: Processor) -> Result:
    chain = Chain(steps)
    try:
        [result] = chain.run([subject])
    finally:
        chain.close()
    return result


def one(subject: Record, *steps: Processor) -> Record:
    result = run(subject, *steps)
    assert result.error is None, result.error
    [out] = result.records
    return out
