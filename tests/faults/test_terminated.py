"""SIGTERM of a node's driver: it ends in good order, and the next attempt goes on at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.exit_codes import ENDED
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.topology import UNTOLD
from tests.faults.functions import held, hold
from tests.faults.parts import SMALL, Application, Receiver, drive, events
from tests.faults.test_killed_applications import COUNT, IN_FLIGHT, pipeline, until_sealed
from tests.micro_batch.harness import payloads, state, write_pipeline
from tests.waiting import until

PATIENT = Path(__file__).with_name("patient.py")


@pytest.mark.proves("C10", "C15", "C9")
@pytest.mark.parametrize("how", [{}, SMALL], ids=["in Spark", "small"])
@pytest.mark.parametrize("node", ["sources.in", "destinations.web"])
def test_a_driver_that_is_asked_to_end_gives_its_lease_up_and_leaves_what_can_be_gone_on_with(
    node: str, how: dict[str, str], home: Path, receiver: Receiver, applications: Callable[..., Application]
) -> None:
    # Given a driver in the middle of its work
    rows = events(home / "data", COUNT)
    fast = pipeline(receiver.url, slow="")
    # Slow enough that what it is in the middle of does not end before it is stopped
    write_pipeline(home, "p", fast.replace("rate-limit: 100000, timeout: 5s, max", "rate-limit: 30, timeout: 5s, max"))
    assert plan_run("p", "before").micro_batch == 1
    if node == "destinations.web":
        until_sealed()
    hold().touch()
    application = applications("p", node, "app", how, PATIENT)
    at_work = held().exists if node == "sources.in" else lambda: receiver.accepted() >= 50
    until(lambda: at_work() or application.process.poll() is not None, node)
    # When it alone is asked to end
    application.process.send_signal(signal.SIGTERM)
    # Then it says so, nobody holds its lease, and the attempt is no failure
    assert application.wait() == ENDED, application.log.read_text()[-2000:]
    [ended] = [e for e in application.events() if e["event"] == "ended"]
    assert ended["lease"] == "given up"
    broker = state("p")
    assert broker.leases.held_for(node) == 0
    assert broker.lifecycle.attempts()[node] == 0
    assert broker.failures.failing(node) == []
    assert broker.deliveries.get("web").cursor == 0
    broker.close()
    hold().unlink()
    # And nothing is sent any more, once what was on its way has arrived; the next run goes on from there
    until(lambda: still(receiver), "the last sends to arrive, and none after them")
    write_pipeline(home, "p", fast)
    drive()
    assert payloads(home / "out/file.jsonl") == rows
    seen = receiver.summary()
    assert (seen["accepted"], seen["out_of_order"]) == (COUNT, 0)
    assert seen["duplicates"] <= IN_FLIGHT + UNTOLD


def still(receiver: Receiver) -> bool:
    """Whether nothing arrives for a second."""
    sent = receiver.accepted()
    time.sleep(1.0)
    return receiver.accepted() == sent
