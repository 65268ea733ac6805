"""A run as Airflow plays it: each node in a thread of its own beside the others, on a real Redis, without a JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import (
    ConduitError,
    ConfigError,
    InvariantBroken,
    LeaseHeld,
    NotDurable,
    PipelineStopped,
    StateLost,
    Unavailable,
)
from conduit_tasks.micro_batch import course
from conduit_tasks.micro_batch.acks import ack_along
from conduit_tasks.micro_batch.at_work import at_work
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.recovery import counting
from conduit_tasks.micro_batch.work_needed import awaited
from conduit_tasks.micro_batch.work_through import work_through
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import forget
from tests.micro_batch.harness import here, state
from tests.waiting import until

NOT_TRIED_AGAIN = (ConfigError, PipelineStopped, NotDurable, InvariantBroken, StateLost)
"""What fails a task before its application has begun (`airflow/tasks.py`)."""
SKIPS = (Unavailable, LeaseHeld)


@pytest.fixture(autouse=True)
def patient(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For modules of tests to import. Nodes are threads of a process that may stand still for a while: none is taken
    for one that never began, and none loses its lease, where a test does not say so."""
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "20")
    forget()
    monkeypatch.setattr(course, "BEGINS_WITHIN", 60.0)


@dataclass
class Played:
    """What became of a run. `said`: node → what it said, or the error it ended with; `states`: as Airflow has them;
    `again`: a run is to follow."""

    said: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    idle: bool = False
    again: str = ""
    left: int | None = None

    @property
    def state(self) -> str:
        """The run's."""
        return "failed" if "failed" in self.states.values() else "success"


class Skipped(Exception):
    """The task has nothing to do."""


def play(
    pipeline_id: str,
    run: str = "run",
    *,
    limit: float = 300.0,
    slots: int = 100,
    limits: dict[str, int] | None = None,
    by_hand: bool = False,
    run_all: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]] = here,
    warm: Callable[[], None] = lambda: None,
    without: Sequence[str] = (),
    late: Mapping[str, float] | None = None,
    acks_after: Callable[[], bool] = lambda: True,
    meanwhile: Callable[[], None] | None = None,
    progress: Callable[[str, dict[str, Any]], None] = lambda node, fields: None,
    chosen: Sequence[str] = (),
    retries: int = 0,
    retry_delay: float = 0.1,
    patience: float = 300.0,
) -> Played:
    """Plans a run and lives it to its end. `slots`: nodes that are at work at once, the first in the pipeline first;
    `without`: nodes whose tasks never begin; `late`: seconds until a node's begins; `acks_after`: what must be true
    before a task of acks begins; `meanwhile` is called once the nodes have been started; `chosen`: destinations, all
    where empty."""
    played = Played()
    if not plan_run(pipeline_id, run, limits, by_hand=by_hand).work:
        played.idle = True
        return played
    pipeline = get_pipeline(pipeline_id)
    pool = Slots(slots)

    def attempt(name: str, number: int) -> None:
        """As `ConduitSubmitOperator._execute`."""
        kind, _, id = name.partition(".")
        with at_work(pipeline_id, run, name) as ends:
            try:
                if kind == "destinations" and chosen and id not in chosen:
                    raise Skipped(f"{id} is not chosen")
                work = awaited(pipeline_id, name, run, limit=limit)
                ends.again = f"{name}: {work.reason}" if work.again else ""
                played.said[name] = work.reason
                if work.recovering and number > 1:
                    raise ConfigError(work.reason)
                ends.well, ends.worked = not work.recovering and not work.over and not work.submit, work.done
                if not work.submit and not work.done:
                    raise Skipped(work.reason)
                if work.submit:
                    _application(name, ends)
            except (Skipped, *SKIPS, *NOT_TRIED_AGAIN):
                raise
            except Exception:
                if number <= retries:
                    ends.tried_again_in = retry_delay
                raise
        if ends.follows is not None:
            played.again, played.left = ends.again or f"{name} ended after the acks", ends.left

    def _application(name: str, ends: Any) -> None:
        """As `application/app.py`: there only a stop is not tried again."""
        try:
            with opened(pipeline_id, run) as context, counting(context, name):
                ended = work_through(
                    context, name, run, run_all, limit=limit, progress=lambda **said: progress(name, said), warm=warm
                )
        except (ConfigError, NotDurable, InvariantBroken, StateLost) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        played.said[name] = ended.reason
        ends.again = f"{name}: {ended.reason}" if ended.again else ""
        ends.well = ends.worked = True

    def node(name: str) -> None:
        time.sleep((late or {}).get(name, 0.0))
        for number in range(1, retries + 2):
            try:
                with pool.slot():
                    attempt(name, number)
                played.states[name] = "success"
                return
            except Skipped:
                played.states[name] = "skipped"
                return
            except SKIPS as error:
                played.said[name], played.states[name] = error, "skipped"
                return
            except Exception as error:  # noqa: BLE001 - as Airflow
                played.said[name], played.states[name] = error, "failed"
                if isinstance(error, NOT_TRIED_AGAIN) or (not retries and not isinstance(error, ConduitError)):
                    return
            if number <= retries:
                time.sleep(retry_delay)

    def ack(source: str) -> None:
        name = f"acks.{source}"
        until(acks_after)
        for number in range(1, retries + 2):
            try:
                done = ack_along(pipeline_id, source, run, lambda: None)
            except Exception as error:  # noqa: BLE001 - as Airflow
                played.said[name], played.states[name] = error, "failed"
                if number <= retries:
                    time.sleep(retry_delay)
                continue
            played.said[name], played.states[name] = done, "success"
            if done["again"]:
                played.again, played.left = done["again"], done["left"]
            return

    nodes = [s.node for s in pipeline.sources] + (["processors"] if pipeline.processors else [])
    nodes += [d.node for d in pipeline.destinations]
    threads = [
        threading.Thread(target=node, args=(name,), name=name, daemon=True) for name in nodes if name not in without
    ]
    threads += [threading.Thread(target=ack, args=(s.id,), name=f"acks.{s.id}", daemon=True) for s in pipeline.sources]
    for thread in threads:
        thread.start()
        pool.queued()
    if meanwhile is not None:
        meanwhile()
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hanging = [thread.name for thread in threads if thread.is_alive()]
    assert not hanging, f"{hanging} did not end: {played.said}"
    return played


def all_at_work(run: str, nodes: Sequence[str]) -> bool:
    """Whether all of these nodes of pipeline p are at work in this run."""
    with closing(state("p")) as broker:
        course = broker.runs.under_way(run)
        return course is not None and all(course.at_work(node) for node in nodes)


class Slots:
    """A pool as Airflow's: so many at once, who came first goes first."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._queue: list[threading.Thread] = []
        self._changed = threading.Condition()

    def queued(self) -> None:
        """For readers: threads queue in the order of their start (`play` starts those of a run's front first)."""

    @contextmanager
    def slot(self) -> Any:
        """Waits for a slot, and has it."""
        me = threading.current_thread()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(lambda: self._free > 0 and self._queue[0] is me)
            self._queue.pop(0)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
