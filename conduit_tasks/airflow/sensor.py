"""A sensor that waits until everything that was there at some time is delivered, and its trigger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from conduit_tasks.errors import BrokerUnavailable, ConduitError


class DeliveredSensor(BaseSensorOperator):
    """Waits until everything that the sources of a pipeline had at the time `until` is confirmed by destinations:
    delivered, filtered, not wanted, or a dead letter.

    `destinations`: all if none are named. `until`: a time, or a template of one (ISO 8601); none: the time at which the
    sensor starts. It ends only once a run has asked the sources after that time and found nothing more, so the pipeline
    has to be run, by its own schedule or another DAG. A pipeline whose sources always have more is waited for until its
    sources pause. `deferrable` (the default): the triggerer waits, and no worker's slot is held.

    Fails if the pipeline or a destination does not exist, or is stopped by an error (degraded).
    """

    template_fields: Sequence[str] = ("pipeline_id", "destinations", "until")

    def __init__(
        self,
        *,
        pipeline_id: str,
        destinations: Sequence[str] = (),
        until: str | datetime | None = None,
        poke_interval: float = 10.0,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline_id, self.destinations, self.until = pipeline_id, list(destinations), until
        self.deferrable = deferrable

    def execute(self, context: Any) -> None:
        """Waits; in the triggerer if it is deferrable and there is something to wait for."""
        until = time_of(self.until)
        self.until = until.isoformat()
        if not self.deferrable:
            super().execute(context)
            return
        if self.poke(context):
            return
        trigger = DeliveredTrigger(self.pipeline_id, list(self.destinations), self.until, self.poke_interval)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.timeout_left())

    def timeout_left(self) -> Any:
        from datetime import timedelta

        return timedelta(seconds=self.timeout)

    def poke(self, context: Any) -> bool:
        """Returns whether everything is delivered."""
        from conduit_tasks.airflow.tasks import fail_without_retry

        with fail_without_retry():
            left = waiting(self.pipeline_id, self.destinations, time_of(self.until))
        self.log.info("%s: %s", self.pipeline_id, left or "everything is delivered")
        return not left

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Ends as the trigger says. Raises AirflowFailException with its reason."""
        from conduit_tasks.airflow.compat import AirflowFailException

        if event.get("error"):
            raise AirflowFailException(str(event["error"]))
        self.log.info("%s: everything until %s is delivered", self.pipeline_id, self.until)


class DeliveredTrigger(BaseTrigger):
    """Waits in the triggerer; it asks the broker, every few seconds."""

    def __init__(self, pipeline_id: str, destinations: list[str], until: str, poke_interval: float) -> None:
        super().__init__()
        self.pipeline_id, self.destinations = pipeline_id, destinations
        self.until, self.poke_interval = until, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and its arguments."""
        names = ("pipeline_id", "destinations", "until", "poke_interval")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: everything is delivered, or an error that will not pass. A Redis that does not answer is
        asked again."""
        from conduit_tasks.airflow.wake import at_work

        while True:
            try:
                left = await at_work(lambda: waiting(self.pipeline_id, self.destinations, time_of(self.until)))
            except BrokerUnavailable as error:
                left = str(error)
            except ConduitError as error:
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return
            if not left:
                yield TriggerEvent({"delivered": True})
                return
            await asyncio.sleep(self.poke_interval)


def time_of(until: str | datetime | None) -> datetime:
    """Reads a time; one without a zone is UTC. None is now. Raises ConfigError."""
    from conduit_tasks.errors import ConfigError

    if until is None or until == "":
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(until) if isinstance(until, str) else until
    except ValueError:
        raise ConfigError(
            f"DeliveredSensor: until: '{until}' is no time; write for example 2026-11-24T12:00:00Z"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def waiting(pipeline_id: str, destinations: Sequence[str], until: datetime) -> str:
    """Returns what is waited for, in words; "" if everything that was there at `until` is delivered. Raises
    ConfigError, PipelineStopped (degraded), BrokerUnavailable."""
    from contextlib import closing

    from conduit_tasks.errors import ConfigError, PipelineStopped
    from conduit_tasks.micro_batch.context import open_broker
    from conduit_tasks.pipeline.load import get_pipeline

    pipeline = get_pipeline(pipeline_id)
    known = [d.id for d in pipeline.destinations]
    names = list(destinations) or known
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(
            f"DeliveredSensor: {pipeline_id} has no destination {', '.join(unknown)}; it has {', '.join(known)}"
        )
    with closing(open_broker(pipeline_id)) as broker:
        if broker.lifecycle.stored_status() == "degraded":
            raise PipelineStopped(
                f"pipeline {pipeline_id} is degraded; fix the cause, then `conduit start {pipeline_id}`"
            )
        at, to = broker.positions.drained()
        if at < until.timestamp():
            return f"its sources were not asked after {until.isoformat(timespec='seconds')}, or had more"
        _, *cursors = broker.deliveries.cursors(names)
    behind = [name for name, cursor in zip(names, cursors) if cursor < to]
    return f"{', '.join(behind)} have not confirmed everything up to micro-batch {to}" if behind else ""
