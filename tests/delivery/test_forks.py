"""A forked process collects nothing that its parent has left behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.airflow import forked
from conduit_tasks.delivery.isolated import in_child
from conduit_tasks.spark import keeper
from conduit_tasks.spark.local import LocalExecutors


class Left:
    """A cycle that ends any process but its own that collects it, as a client of Kafka may, whose threads are not
    there."""

    def __init__(self) -> None:
        self.own, self.again = os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.own:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def left() -> Iterator[None]:
    """There is one that this process has not collected yet."""
    gc.disable()
    Left()
    yield
    gc.enable()
    gc.collect()


def test_a_child_that_looks_for_a_deadly_record(left: None) -> None:
    assert in_child(gc.collect) >= 0


def test_a_worker_beside_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a module that has its garbage collected while it is loaded
    (tmp_path / "collects.py").write_text("import gc\ngc.collect()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(keeper, "MODULES", ("collects",))
    executors = LocalExecutors()
    try:
        assert executors.run_all(abs, [-1]) == [1]
    finally:
        executors.halt(240.0)
        executors.close()


def test_an_application_forked_from_its_task(tmp_path: Path) -> None:
    file = tmp_path / "application.py"
    file.write_text("import gc\ngc.collect()\nprint('here')\n")
    application = forked._fork()
    application.start([str(file)], os.environ)
    assert application.stdout.read() == "here\n"
    assert application.wait() == 0
    application.stdout.close()
