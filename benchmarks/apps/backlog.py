"""Delivers a backlog of sealed micro-batches to the one destination of a pipeline, and tells how long that took.

`backlog.py PIPELINE MICRO_BATCHES MOST …`: reads so many micro-batches, then delivers them with at most MOST of them
under way at a time; so for each MOST. Reading, and the start of Spark's context and of its Python workers, are apart.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.apps.drive import WAIT, ready
from conduit_tasks.broker.broker import Broker
from conduit_tasks.micro_batch import together
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.spark.plain import context as spark_context
from conduit_tasks.spark.session import run_all


def calls(broker: Broker) -> int:
    """Calls of scripts so far."""
    told = broker.redis.info("commandstats")
    return sum(told[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in told)


def main() -> None:
    """Prints a line `bench {json}`."""
    id, micro_batches = sys.argv[1], int(sys.argv[2])
    sc = spark_context()
    ready(0)
    workers = max(4, sc.defaultParallelism)
    for _ in range(2):
        sc.parallelize(range(workers), workers).map(ready).collect()
    said = {most: once(id, micro_batches, int(most)) for most in sys.argv[3:]}
    print("bench " + json.dumps(said), flush=True)
    sc.stop()


def once(id: str, micro_batches: int, most: int) -> dict[str, float]:
    """Reads and delivers so many; seconds and calls of scripts that delivering took, and what was delivered."""
    together.TOGETHER = most
    pipeline, broker = get_pipeline(id), open_broker(id)
    (source,), (destination,) = pipeline.sources, pipeline.destinations
    for n in range(micro_batches):
        run = f"read-{n}-for-{most}"
        plan_run(id, run)
        with opened(id, run) as context:
            read_source(context, source.id, run_all, WAIT)
    before, began = counted(broker, destination.id), time.perf_counter()
    with opened(id, f"deliver-{most}") as context:
        deliver_destination(
            context,
            destination.id,
            run_all,
            run=f"deliver-{most}",
            wait=WAIT,
            cleared=False,
            progress=lambda **_: None,
        )
    seconds = time.perf_counter() - began
    after = counted(broker, destination.id)
    broker.close()
    return {"seconds": seconds, **{what: after[what] - before[what] for what in after}}


def counted(broker: Broker, destination: str) -> dict[str, int]:
    """What is counted: calls of scripts, and records that were delivered."""
    return {"calls": calls(broker), "delivered": broker.deliveries.get(destination).counters["delivered"]}


if __name__ == "__main__":
    main()
