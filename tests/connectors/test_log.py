"""The log destination: each record, at the level asked for."""

from __future__ import annotations

import json
import logging

import pytest

from conduit_tasks.connectors.log import LOGGER, LogDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import ConfigError, Refused
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch

ORIGIN = Origin("p", "in", "", {"k": "v"})


def rows(payload: bytes | dict[str, int] = b"x") -> Rows:
    records = [Record(b"1", after=payload, origin=ORIGIN), Record(b"2", after={"a": 1}, origin=ORIGIN)]
    return Rows(spool_batch([0, 0], [0, 1], records), [ORIGIN])


def test_each_record_is_a_line_at_the_level_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    out = LogDestination({"level": "WARN", "message": "seen"})
    out.open(None)
    with caplog.at_level(logging.DEBUG, LOGGER):
        out.write(rows())
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    texts = [r.getMessage() for r in caplog.records]
    assert all(t.startswith("seen {") for t in texts)
    assert [json.loads(t.removeprefix("seen ")) for t in texts] == [r.to_opencdc() for r in rows().records()]


def test_a_damaged_payload_is_refused() -> None:
    bad = rows(b"{torn")
    shapes = bad.batch.schema.get_field_index("shape")
    batch = bad.batch.set_column(shapes, "shape", bad.batch.column("shape")[1:].take([0, 0]))
    with pytest.raises(Refused, match="not JSON"):
        LogDestination({}).write(Rows(batch, bad.origins))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="option 'level' cannot be 'loud'"):
        LogDestination({"level": "loud"})
