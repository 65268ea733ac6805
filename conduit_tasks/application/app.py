"""The program of a node (`spark-submit app.py --pipeline P --node N --run R`, or plain Python with `SPARK_REMOTE`):
runs it, says by an exit code how it ended, and writes JSON lines for the task log.

It reads, processes or delivers, one micro-batch after the other, until the run has drained; small ones in a child
process of its own. Arguments are ids only; everything else comes from the pipeline file and the broker.

Exit codes: 0 done · 3 the destination is unavailable and waits, cursor unmoved · 4 the pipeline is stopped or
degraded · 5 somebody else holds the lease · 143 asked to end by SIGTERM, its lease given up · 1 anything else, which
Airflow retries.
Lines on stderr that begin with `conduit ` are JSON objects for the task log.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from conduit_tasks.exit_codes import ENDED, HELD, STOPPED, WAITING
from conduit_tasks.topology import Node


def event(name: str, **fields: Any) -> None:
    """Writes one structured line to stderr."""
    import orjson

    sys.stderr.write("conduit " + orjson.dumps({"event": name, **fields}).decode() + "\n")
    sys.stderr.flush()


def main(argv: list[str] | None = None) -> int:
    """Runs one node; returns the exit code."""
    parser = argparse.ArgumentParser(prog="conduit-app", description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--node", type=Node, required=True, help="sources.<id>, processors or destinations.<id>")
    parser.add_argument("--run", required=True, help="the Airflow run id")
    parser.add_argument("--drain-limit", type=float, default=3600.0, help="seconds that the run lasts at most")
    parser.add_argument("--cleared", action="store_true", help="this run's task succeeded before and was cleared")
    options = parser.parse_args(argv)

    from conduit_tasks.spark.installed import prefer_installed

    prefer_installed()
    from conduit_tasks import connections, errors, logs
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.halting import halting, halting_worker
    from conduit_tasks.micro_batch.handed import handing_over
    from conduit_tasks.micro_batch.recovery import counting
    from conduit_tasks.micro_batch.work_through import work_through
    from conduit_tasks.spark.ended import ending_in_order
    from conduit_tasks.spark.local import WorkerLost
    from conduit_tasks.spark.session import (
        foresees,
        interrupt,
        lost,
        parallelism,
        prepare,
        run_all,
        warm,
        work_for,
    )

    started = time.monotonic()
    where = {"pipeline": options.pipeline, "node": options.node}
    destination = options.node.id if options.node.kind == "destinations" else None
    logs.configure()
    work_for(options.pipeline, options.node, halting_worker)
    connections.current()  # they leave the environment before anything else is started
    prepare()

    def halt(why: str) -> None:
        event("stopped", reason=why, **where)
        # At a Connect server the job outlives its driver. Its Python workers end themselves, its SQL does not.
        interrupt()
        os._exit(STOPPED)

    try:
        with (
            ending_in_order(),
            logs.about(run=options.run, destination=destination, **where),
            opened(options.pipeline, options.run) as context,
            counting(context, options.node),
            halting(context.broker, options.node, halt),
        ):
            ended = work_through(
                context,
                options.node,
                options.run,
                handing_over(context, options.node, run_all),
                limit=options.drain_limit,
                cleared=options.cleared,
                progress=lambda **fields: event("progress", node=options.node, **fields),
                warm=warm,
                begin=foresees(),
                parallelism=parallelism,
            )
    except errors.Unavailable as error:
        event("waiting", reason=str(error), **where)
        return WAITING
    except errors.PipelineStopped as error:
        event("stopped", reason=str(error), **where)
        return STOPPED
    except errors.LeaseHeld as error:
        event("held", reason=str(error), owner=error.owner, **where)
        return HELD
    except errors.Terminated as error:
        event("ended", reason=str(error), lease="lapses" if error.busy else "given up", **where)
        return ENDED
    except Exception as error:
        # Not every call to Spark goes through our code, for example those of an SQL statement.
        told = error if isinstance(error, errors.ConduitError | WorkerLost) else lost(error)
        said = told or error
        event("failed", reason=str(said) or type(said).__name__, error=type(said).__name__, **where)
        if told is None:
            raise
        return 1
    seconds = round(time.monotonic() - started, 3)
    event("done", said=ended.reason, again=ended.again or None, seconds=seconds, **where)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    from conduit_tasks.spark.session import close

    # The interpreter's exit would otherwise wait for the gateway; Airflow needs only the exit code.
    if code or close():
        os._exit(code)
