"""Failed tasks as issues: every task of a pipeline's DAGs says how each of its attempts ended, whatever ended it, in a
message freed of secrets.

Airflow calls these functions in the task's process, or, if that was killed, where it parses DAGs. They are bookkeeping:
what goes wrong in them is logged, and changes nothing of the task's own end.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow.compat import AirflowFailException
from conduit_tasks.errors import ConduitError, Fenced, LeaseHeld, PipelineStopped
from conduit_tasks.logs import masked
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.topology import Destination, Source

log = logging.getLogger(__name__)

LONGEST = 1_000
"""Characters kept of a message; what to do stands at its end."""
KILLED = "its process ended without a word; see the task's log"


class NodeFailed(AirflowException):
    """The application of a node failed. `error_class`, `reason`: what it said of that; no class: somebody ended it."""

    def __init__(self, message: str, error_class: str, reason: str) -> None:
        super().__init__(message)
        self.error_class, self.reason = error_class, reason


def watch(task: Any, pipeline_id: str, node: str) -> None:
    """Has Airflow call the functions below when an attempt at the task has ended, after those that it calls anyhow."""
    fails = partial(failed, pipeline_id=pipeline_id, node=node)
    task.on_retry_callback = [*task.on_retry_callback, fails]
    task.on_failure_callback = [*task.on_failure_callback, partial(fails, tells=True)]
    task.on_success_callback = [*task.on_success_callback, partial(succeeded, pipeline_id=pipeline_id, node=node)]


def failed(context: Any, *, pipeline_id: str, node: str, tells: bool = False) -> None:
    """Counts an attempt that failed in its issue. `tells`: tells of issues that are new, as no attempt follows."""
    from conduit_tasks.airflow.alerts import look
    from conduit_tasks.micro_batch.context import open_broker
    from conduit_tasks.operate.issues import note_failure

    try:
        ti = context["ti"]
        where = {
            "dag": ti.dag_id,
            "run": ti.run_id,
            "task": ti.task_id,
            "map_index": ti.map_index,
            "try": ti.try_number,
        }
        with closing(open_broker(pipeline_id)) as broker:
            found = _of_stop(broker, node) if _stopped(context.get("exception")) else failure_of(context, node)
            if found is None:
                return
            message = clipped(without_secrets(found.message, pipeline_id))
            attempt = found.attempt or "/".join(map(str, where.values()))
            note_failure(broker, found.node, node, found.error_class, message, attempt, where)
    except Exception as error:  # noqa: BLE001 - the task has failed already
        log.warning("the failure of %s is in no issue: %s: %s", node, type(error).__name__, error)
        return
    if tells:
        look(pipeline_id, str(ti.run_id), context)


def succeeded(context: Any, *, pipeline_id: str, node: str) -> None:
    """Notes that a node has succeeded, for the issues of its failures."""
    from conduit_tasks.micro_batch.context import open_broker

    try:
        with closing(open_broker(pipeline_id)) as broker:
            broker.issues.succeeded(node)
    except Exception as error:  # noqa: BLE001 - the task has succeeded
        log.warning("the issues of %s do not hear that it succeeded: %s: %s", node, type(error).__name__, error)


@dataclass(frozen=True)
class Failure:
    """A failure. `attempt`: names it, if it is not the task's attempt alone that does."""

    node: str
    error_class: str
    message: str
    attempt: str = ""


def failure_of(context: Any, node: str) -> Failure | None:
    """Returns what failed in a task; None if somebody else took over. Without an error its process was killed."""
    error = context.get("exception")
    if error is None:
        return Failure(node, "killed", KILLED)
    if isinstance(error, NodeFailed):
        return Failure(node, error.error_class, error.reason) if error.error_class else None
    cause = _cause(error)
    if isinstance(cause, (LeaseHeld, Fenced)):
        return None
    if isinstance(cause, ConduitError):
        return Failure(node, type(cause).__name__, str(cause))
    plain = isinstance(error, str) or type(error) in (AirflowException, AirflowFailException)
    return Failure(node, "failed" if plain else type(error).__name__, str(error) or type(error).__name__)


def _cause(error: Any) -> Any:
    return error.__cause__ if isinstance(error, AirflowFailException) else error


def _stopped(error: Any) -> bool:
    return isinstance(_cause(error), PipelineStopped)


def _of_stop(broker: Broker, node: str) -> Failure | None:
    """Returns the first error of a stop, which all tasks meet and which counts once; None if somebody stopped it."""
    found = broker.lifecycle.status()
    error = found.error if found.status == "degraded" else None
    if error is None and Node(node).kind == "destinations":
        error = broker.deliveries.get(Node(node).id).error
    if error is None:
        return None
    said = error.error.removeprefix(f"{error.error_class}: ")
    return Failure(error.node, error.error_class, said, f"stop/{error.at}")


def without_secrets(text: str, pipeline_id: str) -> str:
    """Returns a message without passwords in addresses, without what Airflow knows to be secret, and without the
    settings of the pipeline whose names say that they are."""
    from airflow.sdk._shared.secrets_masker import redact

    from conduit_tasks.connectors.hiding import hiding
    from conduit_tasks.pipeline.load import get_pipeline
    from conduit_tasks.secret_names import secret_values

    try:
        pipeline = get_pipeline(pipeline_id)
    except ConduitError:
        settings: list[Any] = []  # its file is what failed
    else:
        connectors: list[Source | Destination] = [*pipeline.sources, *pipeline.destinations]
        processors = [*pipeline.processors, *(p for each in connectors for p in each.processors)]
        settings = [*(c.settings for c in connectors), *(p.settings for p in processors)]
    # Whole ones first: of a secret that has another one within, the rest would be left.
    return str(redact(hiding(secret_values(settings))(masked(text))))


def clipped(text: str) -> str:
    """Returns a message on one line; of a long one begin and end, where it says what to do."""
    line = " ".join(text.split())
    half = LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[: half - 2]} … {line[-half:]}"
