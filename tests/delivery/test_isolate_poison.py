from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors import kept
from conduit_tasks.connectors.base import DELIVERED
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.isolate_poison import deliver_isolated
from conduit_tasks.delivery.isolated import in_child
from conduit_tasks.delivery.reading import KILLED
from conduit_tasks.delivery.work import DeliveryReport
from conduit_tasks.errors import Unavailable
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Target, work_of


class Shelf:
    """A broker and a target that outlive the children: a file each."""

    def __init__(self, folder: Path, total: int) -> None:
        self.state, self.sent, self.total = folder / "port", folder / "sent", total
        self.sent.touch()
        self.put(FakePort(total, list(range(total))))

    def put(self, port: FakePort) -> None:
        kept = {k: getattr(port, k) for k in ("confirmed", "votes", "stored", "counts")}
        aside = self.state.with_suffix(".tmp")
        aside.write_bytes(pickle.dumps(kept))
        aside.replace(self.state)

    def port(self) -> FakePort:
        port = FakePort(self.total, list(range(self.total)))
        for name, value in pickle.loads(self.state.read_bytes()).items():
            setattr(port, name, value)
        return port

    def deliver(self, killers: set[int]) -> Any:
        """A delivery in a child, in which sending one of `killers` ends the process."""

        def run(span: tuple[int, int], culprits: Sequence[int]) -> DeliveryReport:
            port = self.port()
            confirm = port.confirm

            def kept(*args: Any, **kwargs: Any) -> None:
                confirm(*args, **kwargs)
                self.put(port)

            port.confirm = kept  # type: ignore[method-assign]

            def send(seq: int) -> None:
                if seq in killers:
                    os.kill(os.getpid(), signal.SIGKILL)
                with self.sent.open("a") as file:
                    file.write(f"{seq}\n")

            target = Target(lambda *_: DELIVERED)
            target.on_send = send
            work = replace(work_of(port), span=span, culprits=culprits)
            return deliver(work, target, port, Delivery())

        return run

    def confirmed(self) -> Sequence[tuple[int, int]]:
        return self.port().confirmed.ranges


@pytest.mark.proves("C10", "B7")
@pytest.mark.parametrize("killers", [{0}, {63}, {12, 13, 40}])
def test_a_record_that_kills_its_worker_is_found_and_dead_lettered_and_the_rest_arrives(
    tmp_path: Path, killers: set[int]
) -> None:
    # Given records whose delivery ends the process
    shelf = Shelf(tmp_path, 64)
    # When poison is isolated in the micro-batch
    deliver_isolated(shelf.deliver(killers), shelf.confirmed, (0, 63))
    # Then they alone are dead letters, never sent to the end, and everything is confirmed
    port = shelf.port()
    assert port.complete
    assert {key[2] for key in port.stored} == killers
    assert {letter.error_class for letter in port.stored.values()} == {KILLED}
    assert {int(line) for line in shelf.sent.read_text().split()} == set(range(64)) - killers
    assert port.votes == ["n" if seq in killers else "a" for seq in range(64)]


@pytest.mark.proves("C10")
def test_without_a_death_it_is_one_delivery_in_one_child(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 50)
    report = deliver_isolated(shelf.deliver(set()), shelf.confirmed, (0, 49))
    assert report.counts.delivered == 50
    assert shelf.sent.read_text().split() == [str(seq) for seq in range(50)]


@pytest.mark.proves("C10")
def test_an_error_of_the_delivery_is_no_death(tmp_path: Path) -> None:
    def run(span: tuple[int, int], culprits: Sequence[int]) -> DeliveryReport:
        raise Unavailable("down", status=503, retry_after=7.0)

    with pytest.raises(Unavailable, match="down") as raised:
        deliver_isolated(run, lambda: (), (0, 9))
    assert (raised.value.status, raised.value.retry_after) == (503, 7.0)


@pytest.mark.proves("C10")
def test_a_process_that_died_of_something_else_costs_no_record(tmp_path: Path) -> None:
    # Given a child that is killed once, with one record left
    shelf = Shelf(tmp_path, 1)
    once = tmp_path / "killed"

    def run(span: tuple[int, int], culprits: Sequence[int]) -> DeliveryReport:
        if not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return shelf.deliver(set())(span, culprits)  # type: ignore[no-any-return]

    # When poison is isolated
    deliver_isolated(run, shelf.confirmed, (0, 0))
    # Then the record got its second chance
    assert not shelf.port().stored
    assert shelf.port().complete


def test_clients_are_closed_before_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork has a client without its threads, and whatever lock one of them held."""
    closed: list[int] = []
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(kept, "_of", os.getpid())
    kept.give("client", object(), lambda: closed.append(os.getpid()), float("inf"))
    assert in_child(lambda: kept.take("client")) is None
    assert closed == [os.getpid()]
