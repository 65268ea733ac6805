"""SIGKILL of the process group of each Spark application at several moments: the next runs go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.settings import forget
from conduit_tasks.topology import UNTOLD
from tests.faults.functions import hold
from tests.faults.parts import SMALL, Application, Receiver, account, drive, events, table
from tests.micro_batch.harness import here, lines, payloads, state, write_pipeline
from tests.waiting import until

COUNT, IN_FLIGHT = 1_500, 16
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 750}
    lag-budget: {records: 1500}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}
        processors: [{id: slow, plugin: python, settings: {call: "tests.faults.functions:slow"}}]
      - id: file
        type: destination
        plugin: file
        settings: {path: out/file.jsonl, format: payload}
        delivery: {rate-limit: RATE_FILE, timeout: 5s}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {rate-limit: RATE_WEB, timeout: 5s, max-unconfirmed: 16, order-by: key}
      - id: table
        type: destination
        plugin: sql
        settings: {url: "sqlite:///out/table.db", table: events, columns: "n:int=.Payload.After.n"}
        delivery: {rate-limit: RATE_TABLE, timeout: 5s}
    processors: [{id: slow, plugin: python, settings: {call: "tests.faults.functions:slow"}}]
"""


def pipeline(url: str, slow: str) -> str:
    """The pipeline; the destination that is to be killed in the middle would need 15 s for its micro-batch."""
    text = PIPELINE.replace("URL", url)
    for name in ("file", "web", "table"):
        text = text.replace(f"RATE_{name.upper()}", "50" if slow == f"destinations.{name}" else "100000")
    return text


def until_read() -> None:
    """What runs before the node that is killed: plan, and the sources."""
    with opened("p", "before") as context:
        read_source(context, "in", here, 20.0)


def until_sealed() -> None:
    until_read()
    with opened("p", "before") as context:
        process(context, here, 20.0)


Moment = Callable[[Path, Receiver], bool]


def lease(node: str) -> Moment:
    """Somebody holds the lease."""

    def held(home: Path, receiver: Receiver) -> bool:
        broker = state("p")
        try:
            return broker.lifecycle.attempts()[node] > 0
        finally:
            broker.close()

    return held


CASES: dict[str, tuple[str, Callable[[], None], Moment, float]] = {
    "the source at once": ("sources.in", lambda: None, lease("sources.in"), 0.0),
    "the source after a second": ("sources.in", lambda: None, lease("sources.in"), 1.0),
    "the processors": ("processors", until_read, lease("processors"), 0.3),
    "the file at once": ("destinations.file", until_sealed, lease("destinations.file"), 0.0),
    "the file later": ("destinations.file", until_sealed, lambda home, _: bool(lines(home / "out/file.jsonl")), 0.3),
    "HTTP in the middle": ("destinations.web", until_sealed, lambda _, receiver: receiver.accepted() >= 100, 0.0),
    "SQL in the middle": ("destinations.table", until_sealed, lambda home, _: bool(table(home / "out/table.db")), 0.2),
}  # fmt: skip


@pytest.mark.proves("C9", "C10", "C11", "C12", "T1", "T4", "I2", "I3", "I10")
@pytest.mark.parametrize(
    ("case", "how"),
    [
        *((case, {}) for case in CASES),
        *((case, SMALL) for case in ("the source at once", "the processors", "HTTP in the middle", "the file later")),
    ],
    ids=lambda value: value if isinstance(value, str) else "small" if value else "in Spark",
)
def test_a_killed_application_loses_nothing_and_the_next_run_goes_on(
    case: str,
    how: dict[str, str],
    home: Path,
    receiver: Receiver,
    applications: Callable[..., Application],
    acks: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, before, moment, later = CASES[case]
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "2")
    forget()
    # Given a pipeline brought to where the node begins
    rows = events(home / "data", COUNT)
    write_pipeline(home, "p", pipeline(receiver.url, slow=node))
    assert plan_run("p", "before").micro_batch == 1
    before()
    # When its application is killed at that moment, in the middle of its work
    hold().touch()
    application = applications("p", node, environment=how)
    until(lambda: moment(home, receiver) or application.process.poll() is not None, case)
    time.sleep(later)
    application.kill()
    hold().unlink()
    # Then what it did is incomplete, and runs that follow complete it
    broker = state("p")
    if node.startswith("destinations."):
        assert broker.deliveries.get(node.removeprefix("destinations.")).cursor < 1
    else:
        assert broker.micro_batches.latest_sealed() == 0
    broker.close()
    if node.startswith("destinations."):
        write_pipeline(home, "p", pipeline(receiver.url, slow=""))
    drive()
    # The file and the table have every record once and in order
    assert payloads(home / "out/file.jsonl") == rows
    assert table(home / "out/table.db") == [row["n"] for row in rows]
    # HTTP has every record, each key in order, and at most the unconfirmed ones twice
    seen = receiver.summary()
    assert seen["accepted"] == COUNT
    assert seen["duplicates"] <= (IN_FLIGHT + UNTOLD if node == "destinations.web" else 0)
    assert seen["out_of_order"] == 0
    # And every record is acked, and counted once
    found = account()
    assert [d["delivered"] for d in found["destinations"].values()] == [COUNT] * 3
    assert acks
