"""Builds the topology from the keys of a file: every default applied, plugins without their prefix."""

from __future__ import annotations

from dataclasses import replace

from conduit_tasks import topology
from conduit_tasks.connectors.plugins import parse_plugin, plugin_name
from conduit_tasks.pipeline.model import (
    ConnectorKeys,
    DeadLetterKeys,
    DeliveryKeys,
    LagBudgetKeys,
    PipelineKeys,
    ProcessorKeys,
)
from conduit_tasks.pipeline.validate import GATEWAY
from conduit_tasks.record.searchable import index_of
from conduit_tasks.topology import (
    DeadLetterQueue,
    Delivery,
    Destination,
    Limits,
    Node,
    Pipeline,
    Processor,
    Recovery,
    Source,
    Wake,
)


def to_pipeline(keys: PipelineKeys, file: str = "", line: int = 0) -> Pipeline:
    """Returns the topology of a pipeline whose keys were checked (`validate.check`)."""
    from conduit_tasks.settings import settings

    queue = _dead_letters(keys.dead_letter_queue, "dead-letter-queue")
    retention = keys.spool.retention
    return Pipeline(
        id=keys.id,
        name=keys.name or keys.id,
        description=keys.description,
        status=keys.status,
        sources=tuple(_source(c) for c in keys.connectors if c.type == "source"),
        destinations=tuple(_destination(c, queue) for c in keys.connectors if c.type == "destination"),
        processors=_processors(keys.processors, "processors"),
        schedule=keys.schedule.strip(),
        data_intervals=keys.data_intervals,
        wake=Wake(tuple(keys.wake.sources), keys.wake.look, keys.wake.pause) if keys.wake else None,
        micro_batch=Limits(records=keys.micro_batch.max_records, bytes=keys.micro_batch.max_bytes),
        lag_budget=_lag_budget(keys.lag_budget),
        isolate=keys.isolate,
        event_time=keys.event_time,
        mask=tuple(keys.mask),
        index=index_of(keys.index, keys.mask),
        drain_limit=keys.drain_limit,
        replay_interval=keys.replay_interval.strip(),
        spool_path=keys.spool.path,
        spool_retention=settings().retention if retention is None else retention,
        dead_letters=queue,
        handlers=tuple(
            # The default is left out, so that the digests of older pipelines do not change.
            {"on": h.on, "call": h.call, **({"of": h.of} if h.of != "destination" else {})}
            for h in keys.handlers
        ),
        alerts=tuple(alert.model_dump() for alert in keys.alerts),
        recovery=Recovery(**keys.error_recovery.model_dump()),
        file=file,
        line=line,
    )


def _source(keys: ConnectorKeys) -> Source:
    plugin = plugin_name(keys.plugin)
    return Source(
        id=keys.id,
        plugin=plugin,
        settings=keys.settings,
        processors=_processors(keys.processors, Node.source(keys.id)),
        ack_on=keys.ack_on,
        durability=keys.durability or ("redis" if plugin == GATEWAY else None),
        assets=None if keys.asset is None else tuple(keys.asset),
    )


def _destination(keys: ConnectorKeys, queue: DeadLetterQueue) -> Destination:
    delivery = keys.delivery or DeliveryKeys()
    return Destination(
        id=keys.id,
        plugin=plugin_name(keys.plugin),
        settings=keys.settings,
        processors=_processors(keys.processors, Node.destination(keys.id)),
        filters=tuple(keys.trigger.filters) if keys.trigger else (),
        delivery=_delivery(delivery),
        dead_letters=_dead_letters(keys.dead_letter_queue, f"{keys.id}.dead-letter-queue")
        if keys.dead_letter_queue
        else queue,
        on_delivered=keys.on_delivered.model_dump(exclude_none=True) if keys.on_delivered else {},
        deadline=keys.deadline,
        assets=None if keys.asset is None else tuple(keys.asset),
    )


def _delivery(keys: DeliveryKeys) -> Delivery:
    found = keys.effective().model_dump()
    if found["breaker"] is not None:
        found["breaker"] = topology.Breaker(**found["breaker"], asked_max=keys.retry_after_max)
    delivery = Delivery(**found)
    if "timeout" in keys.model_fields_set:
        delivery = replace(delivery, bulk_timeout=max(keys.timeout, topology.LEAST_BULK_TIMEOUT))
    # At-most-once cannot wait: records that an unavailable destination did not take must not go again (SEMANTICS B8).
    return replace(delivery, on_unavailable="dead-letter") if keys.guarantee == "at-most-once" else delivery


def _processors(keys: list[ProcessorKeys], section: str) -> tuple[Processor, ...]:
    return tuple(
        Processor(p.id, parse_plugin(p.plugin).name, p.settings, p.condition or None, p.workers or 1, section)
        for p in keys
    )


def _dead_letters(keys: DeadLetterKeys, section: str) -> DeadLetterQueue:
    return DeadLetterQueue(
        plugin=plugin_name(keys.plugin) if keys.plugin else None,
        settings=keys.settings,
        window_size=keys.window_size,
        window_nack_threshold=keys.window_nack_threshold,
        processors=_processors(keys.processors, section),
    )


def _lag_budget(keys: LagBudgetKeys | None) -> Limits | None:
    if keys is None or not keys.model_fields_set:
        return None
    return Limits(records=keys.records, bytes=keys.bytes, age=keys.age)
