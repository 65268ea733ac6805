"""End of the runs under way when their scheduler is stopped: nodes finish the micro-batches that they are at."""

from __future__ import annotations

import logging
from collections.abc import Collection

from conduit_tasks.errors import ConduitError
from conduit_tasks.pipeline.names import dag_id

log = logging.getLogger(__name__)


def wind_up(dags: Collection[str]) -> None:
    """Has the runs of these DAGs end soon; what they leave goes to runs that follow. A pipeline whose file or Redis
    cannot be read is left alone, with a warning: its tasks are waited for all the same."""
    from conduit_tasks.micro_batch.context import open_broker
    from conduit_tasks.pipeline.load import load_folder
    from conduit_tasks.settings import settings

    if not dags:
        return
    folder = settings().path(settings().pipelines)
    for pipeline in load_folder(folder, wanted=lambda id: dag_id(id) in dags).pipelines:
        if dag_id(pipeline.id) not in dags:
            continue
        try:
            broker = open_broker(pipeline.id, initialise=False)
            try:
                if run := broker.runs.wind_up():
                    log.info("%s: run %s ends with the micro-batches that its nodes are at", pipeline.id, run)
            finally:
                broker.close()
        except ConduitError as error:
            log.warning("%s: the run under way is not told that the scheduler stops: %s", pipeline.id, error)
