"""A run as Airflow plays it: each node in a thread of its own beside the others, on a real Redis, without a JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.acks import ack_along
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.draining import at_work
from conduit_tasks.micro_batch.node import work_through
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.work import awaited
from conduit_tasks.pipeline.load import get_pipeline
from tests.micro_batch.harness import here


@dataclass
class Played:
    """What became of a run. `said`: node → what it said, or the error it ended with; `again`: a run is to follow."""

    said: dict[str, Any] = field(default_factory=dict)
    idle: bool = False
    again: str = ""
    left: int | None = None


def play(
    pipeline_id: str,
    run: str = "run",
    *,
    limit: float = 60.0,
    slots: int = 100,
    limits: dict[str, int] | None = None,
    run_all: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]] = here,
    without: Sequence[str] = (),
    late: Mapping[str, float] | None = None,
    meanwhile: Callable[[], None] | None = None,
    progress: Callable[[str, dict[str, Any]], None] = lambda node, fields: None,
) -> Played:
    """Plans a run and lives it to its end. `slots`: nodes that are at work at once, the first in the pipeline first;
    `without`: nodes whose tasks never begin; `late`: seconds until a node's begins; `meanwhile` is called once
    the nodes have been started."""
    played = Played()
    if not plan_run(pipeline_id, run, limits).work:
        played.idle = True
        return played
    pipeline = get_pipeline(pipeline_id)
    pool = Slots(slots)

    def node(name: str) -> None:
        time.sleep((late or {}).get(name, 0.0))
        with pool.slot():
            try:
                with at_work(pipeline_id, run, name) as ends:
                    work = awaited(pipeline_id, name, run, limit=limit)
                    ends.again = f"{name}: {work.reason}" if work.again else ""
                    played.said[name] = work.reason
                    ends.well, ends.worked = not work.recovering and not work.over and not work.submit, work.done
                    if work.submit:
                        with opened(pipeline_id, run) as context:
                            ended = work_through(
                                context, name, run, run_all, limit=limit, progress=lambda **said: progress(name, said)
                            )
                        played.said[name] = ended.reason
                        ends.again = f"{name}: {ended.reason}" if ended.again else ""
                        ends.well = ends.worked = True
            except ConduitError as error:
                played.said[name] = error
            else:
                if ends.follows is not None:
                    played.again, played.left = ends.again or f"{name} ended after the acks", ends.left

    def ack(source: str) -> None:
        done = ack_along(pipeline_id, source, run, lambda: None)
        played.said[f"acks.{source}"] = done
        if done["again"]:
            played.again, played.left = done["again"], done["left"]

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
    for thread in threads:
        thread.join(120)
    hanging = [thread.name for thread in threads if thread.is_alive()]
    assert not hanging, f"{hanging} did not end: {played.said}"
    return played


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
