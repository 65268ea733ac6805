"""Steps after a delivery that are events of an asset: their own task emits one for each micro-batch; when it runs,
`factory.py` decides (docs/on-delivered.md).

Airflow takes events only with the success of a task, and several of one asset only by way of an alias. So the events of
a task are stored all, in order, or none; the broker is told once Airflow has answered that it has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import Asset, AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowException

from conduit_tasks.airflow.compat import AirflowSkipException
from conduit_tasks.airflow.follow import follow
from conduit_tasks.airflow.on_delivered import end_stop
from conduit_tasks.airflow.tasks import fail_without_retry, run_of
from conduit_tasks.errors import ConfigError, LeaseHeld
from conduit_tasks.logs import about

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.on_delivered import Delivered, Pending

log = logging.getLogger(__name__)

MOST = 500
"""Events that one task emits: Airflow stores them in the request that ends the task, which has five seconds."""


LAST = 10
"""Events that Airflow is asked for at first: the newest one says which others there are."""


def alias_of(pipeline_id: str, destination: str) -> str:
    """Returns the name of the alias by which the events of a destination come."""
    return f"conduit/{pipeline_id}/{destination}"


def asset_of(text: str) -> Asset:
    """Returns the asset that a file names. Raises ConfigError if it is none: its provider may have come since the file
    was validated."""
    try:
        return Asset(text)
    except ValueError as error:
        raise ConfigError(f"on-delivered: {text} is no asset of Airflow's: {error}") from None


class AssetStepOperator(BaseOperator):
    """Emits an event of `asset` for each micro-batch that a destination has confirmed since the last one, in order and
    at least once. Ends as skipped if there is none."""

    def __init__(self, *, pipeline_id: str, destination: str, asset: str, **kwargs: Any) -> None:
        super().__init__(on_success_callback=emitted, **kwargs)
        self.pipeline_id, self.destination, self.asset = pipeline_id, destination, asset
        self._held = ExitStack()
        self._pending: Pending | None = None

    def execute(self, context: Any) -> None:
        run = run_of(self.pipeline_id, getattr(context["ti"], "dag_id", None), context["run_id"])
        alias = AssetAlias(alias_of(self.pipeline_id, self.destination))
        with about(pipeline=self.pipeline_id, destination=self.destination, run=run), fail_without_retry():
            due = self._due(run)
            if not due:
                self._held.close()
                self._stopped()
                raise AirflowSkipException("Airflow knows of every micro-batch that is delivered")
            asset = asset_of(self.asset)
            for delivered in due:
                context["outlet_events"][alias].add(asset, extra={**delivered.told, "id": delivered.id})
            self.outlets = [alias]
            log.info("emits micro-batches %d to %d", due[0].micro_batch, due[-1].micro_batch)
            if self._pending and self._pending.more:
                start, chosen = context["dag_run"].start_date, context["params"].get("destinations")
                began = start.timestamp() if start else 0.0
                follow(context["ti"], self.pipeline_id, run, began, 0, chosen, "there are more events to emit")

    def _due(self, run: str) -> Sequence[Delivered]:
        """Returns what is to be emitted, and holds the step's lease. An earlier task may have died before it could say
        that its events are there."""
        from conduit_tasks.micro_batch.context import open_broker, owner_of
        from conduit_tasks.micro_batch.on_delivered import pending
        from conduit_tasks.settings import settings

        with ExitStack() as held:
            broker = held.enter_context(closing(open_broker(self.pipeline_id)))
            wait = settings().lease_ttl + settings().lease_grace
            try:
                found = held.enter_context(pending(broker, self.destination, owner_of(run), MOST, wait=wait))
            except LeaseHeld as other:
                log.info("%s emits the events of %s", other.owner, self.destination)
                return ()
            if found.delivered:
                settle(found, alias_of(self.pipeline_id, self.destination))
            self._held, self._pending = held.pop_all(), found
        return tuple(found.delivered)

    def emitted(self) -> None:
        """Tells the broker which of the events Airflow has, and lets another task go on."""
        found = self._pending
        with self._held:
            if found is not None and found.delivered:
                settle(found, alias_of(self.pipeline_id, self.destination))
        if found is not None and not found.delivered:
            self._stopped()

    def _stopped(self) -> None:
        """Ends a graceful stop that has waited for these events."""
        from conduit_tasks.micro_batch.context import opened

        with opened(self.pipeline_id, "events") as context:
            end_stop(context)


class PlanOperator(ShortCircuitOperator):
    """The task `plan`. If another run lasts (`@continuous`) and does all the work, only the events that are due are
    left to this one; as many such runs follow each other as there are events for."""

    _emits = False

    def execute_callable(self) -> Any:
        planned = super().execute_callable()
        self._emits = not planned and events_are_due(self.op_kwargs["pipeline_id"])
        return planned

    def skip(self, ti: Any, tasks: Iterable[Any]) -> None:
        super().skip(ti=ti, tasks=[task for task in tasks if not (self._emits and isinstance(task, AssetStepOperator))])


def events_are_due(pipeline_id: str) -> bool:
    """Returns whether there are micro-batches of which Airflow has no event, and the pipeline is not stopped."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.plan import steps_behind
    from conduit_tasks.pipeline.load import get_pipeline

    found = [each.id for each in get_pipeline(pipeline_id).destinations if "asset" in each.on_delivered]
    if not found:
        return False
    with opened(pipeline_id, "events") as context:
        goes_on = context.broker.lifecycle.status().status not in ("stopped", "degraded")
        return goes_on and any(steps_behind(context, id) for id in found)


def emitted(context: Any) -> None:
    """Is called by Airflow once it has stored the task's success, and with it the events; or has failed to."""
    context["ti"].task.emitted()


def settle(found: Pending, alias: str) -> None:
    """Takes those micro-batches for told whose events Airflow has: they come in order, so the newest one says which."""
    numbers = {each.id: each.micro_batch for each in found.delivered}
    for events in newest(alias):
        if known := [numbers[id] for event in events if (id := str((event.extra or {}).get("id"))) in numbers]:
            found.told_through(max(known))
            return


def newest(alias: str) -> Iterator[list[Any]]:
    """Yields the newest events of an alias, as Airflow has them, in portions. Of events that lie in the future, as a
    clock was ahead when they were stored, those before them are yielded, too: they may be newer. Raises
    AirflowException if Airflow does not answer."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetAssetEventByAssetAlias

    before, limit = None, LAST
    while True:
        asked = GetAssetEventByAssetAlias(alias_name=alias, ascending=False, limit=limit, before=before)
        answer: Any = task_runner.SUPERVISOR_COMMS.send(asked)
        if isinstance(answer, ErrorResponse):
            raise AirflowException(f"on-delivered: Airflow does not say which events it has: {answer.error}")
        events = list(answer.asset_events)
        yield events
        if len(events) < limit or events[-1].timestamp <= datetime.now(UTC):
            return
        # Of events at the same moment some may be yielded twice, but none is left out, unless they are as many.
        again = before is not None and events[-1].timestamp >= before
        before, limit = events[-1].timestamp - timedelta(microseconds=again), MOST
