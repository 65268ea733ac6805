"""Runs a pipeline until nothing is new, in one process with a running Spark context: the cost apart from start-up.

`drive.py PIPELINE REDIS_PID [--beside PID] [--weigh] [--small]`: what the tasks of Airflow runs do, one after the
other, destinations two at a time. "Running" means that the context, its Python workers and the modules they import are
there. `--small`: without Spark, as small work is done (`spark/local.py`, one at a time), for sizes that say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from benchmarks.broker_state import state
from benchmarks.measure import measured, most_memory
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.context import Context, open_broker, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.work_needed import needed
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.spark import session
from conduit_tasks.spark.plain import context as spark_context
from conduit_tasks.spark.session import run_all

WAIT = 20.0


def ready(_: int) -> None:
    """Has a process import what its first task would."""
    import pyarrow.compute
    import pyarrow.parquet

    from conduit_tasks.connectors.file import connector as file  # noqa: F401
    from conduit_tasks.connectors.file import lines as file_lines  # noqa: F401
    from conduit_tasks.connectors.file import read as file_read  # noqa: F401
    from conduit_tasks.connectors.http import connector as http  # noqa: F401
    from conduit_tasks.delivery import batch_wise, record_wise  # noqa: F401
    from conduit_tasks.micro_batch import deliver, read, recorded, row_pass  # noqa: F401
    from conduit_tasks.processors import (
        columns,  # noqa: F401
        registry,  # noqa: F401
    )
    from conduit_tasks.redis_client import connection  # noqa: F401

    # The first array has pyarrow import pandas, where it is installed.
    pyarrow.array([0])
    # Long enough for the other core's worker to be started as well.
    time.sleep(0.2)


class Stages:
    """Seconds per node, summed over the runs."""

    def __init__(self, pipeline_id: str, weigh: bool, at_a_time: int) -> None:
        self.pipeline_id, self.weigh, self.at_a_time = pipeline_id, weigh, at_a_time
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.runs = 0
        self.state_bytes = 0

    def until_quiet(self) -> None:
        """Runs until `plan` finds nothing new."""
        while self.run(f"bench-{self.runs}"):
            self.runs += 1

    def run(self, run: str) -> bool:
        """One run, in the order of the DAG; False where `plan` found nothing to do."""
        pipeline = get_pipeline(self.pipeline_id)
        began = time.perf_counter()
        plan = plan_run(self.pipeline_id, run)
        self.seconds["plan"] += time.perf_counter() - began
        if not plan.work:
            return False
        for source in pipeline.sources:
            self._node(source.node, run, partial(read_source, source_id=source.id, run_all=run_all, wait=WAIT))
        if pipeline.processors:
            self._node("processors", run, partial(process, run_all=run_all, wait=WAIT))
        self._weigh()
        with ThreadPoolExecutor(self.at_a_time) as pool:
            list(pool.map(lambda d: self._deliver(d.id, run), pipeline.destinations))
        self._weigh()
        for source in pipeline.sources:
            began = time.perf_counter()
            ack_source(self.pipeline_id, source.id, run)
            self.seconds["acks"] += time.perf_counter() - began
        self._weigh()
        return True

    def _deliver(self, destination: str, run: str) -> None:
        self._node(
            f"destinations.{destination}",
            run,
            lambda c: deliver_destination(
                c,
                destination,
                run_all,
                run=run,
                wait=WAIT,
                cleared=False,
                progress=lambda **_: None,
            ),
        )

    def _node(self, node: str, run: str, step: Callable[[Context], Any]) -> None:
        began = time.perf_counter()
        with opened(self.pipeline_id, run) as context:
            if needed(context, node, run).submit:
                step(context)
        self.seconds[node] += time.perf_counter() - began

    def _weigh(self) -> None:
        """The most that the pipeline's keys held in Redis at the end of a stage, bytes."""
        if not self.weigh:
            return
        broker = open_broker(self.pipeline_id)
        self.state_bytes = max(self.state_bytes, sum(state(broker.redis).values()))
        broker.close()


def main() -> None:
    """Prints a line `bench {json}`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline")
    parser.add_argument("redis_pid", type=int)
    parser.add_argument("--beside", type=int, help="a process whose CPU is told apart")
    parser.add_argument("--weigh", action="store_true", help="ask Redis for the size of the state after each stage")
    parser.add_argument("--small", action="store_true", help="without Spark")
    options = parser.parse_args()
    end: Callable[[], object]
    if options.small:
        session.prepare()
        session.warm()
        drivers, end = os.getpid(), session.close
    else:
        sc = spark_context()
        ready(0)
        workers = max(4, sc.defaultParallelism)
        sc.parallelize(range(workers), workers).map(ready).collect()
        drivers, end = os.getppid(), sc.stop
    stages = Stages(options.pipeline, options.weigh, 1 if options.small else 2)
    with (
        measured(drivers, options.redis_pid) as cost,
        measured(*([options.beside] if options.beside else [])) as beside,
    ):
        stages.until_quiet()
    said = {
        "seconds": cost.seconds,
        "cpu": cost.cpu,
        "cpu_beside": beside.cpu,
        "stages": dict(stages.seconds),
        "runs": stages.runs,
        "state_bytes": stages.state_bytes,
        "memory_python": most_memory([os.getpid()]),
        "memory_java": most_memory([drivers]),
    }
    print("bench " + json.dumps(said), flush=True)
    end()


if __name__ == "__main__":
    main()
