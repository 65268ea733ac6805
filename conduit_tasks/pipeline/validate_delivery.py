"""Checks of a destination's `delivery`: options that contradict each other, or do nothing (SEMANTICS O, B8)."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.plugins import parse_plugin
from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.findings import Findings, Path
from conduit_tasks.pipeline.model import ConnectorKeys, DeadLetterKeys, DeliveryKeys
from conduit_tasks.pipeline.parallel import reason
from conduit_tasks.pipeline.pipe_names import ONE_UNCONFIRMED, check_name
from conduit_tasks.record.units import parse_duration
from conduit_tasks.topology import INDEX_PIPES, LEAST_BULK_TIMEOUT, LETTERS_TIMEOUT, Delivery

STRICT_PIPES = INDEX_PIPES | {"sequential"}
"""Pipes that promise an order (SEMANTICS O4–O6r)."""
KEY_LANES = 64
"""Lanes of `order-by: key`, a copy of the number in `delivery.lanes`, which imports more than parsing DAGs may."""
_DERIVING = frozenset({"split", "clone"})
"""Processors that make several records from one."""
_RETRYING = ("backoff-policy", "backoff-delay", "retry-after-max")


def check_delivery(connector: ConnectorKeys, queue: DeadLetterKeys, report: Findings, base: Path) -> None:
    """Reports wrong delivery options. `base`: the connector's place; `queue`: the pipeline's dead-letter queue, used if
    the connector has none."""
    _check_reports(connector, report, base)
    if connector.delivery is None:
        return
    delivery, path = connector.delivery.effective(), (*base, "delivery")
    written = {str(DeliveryKeys.model_fields[name].alias or name) for name in connector.delivery.model_fields_set}
    _check_pipe(delivery, report, path)
    check_name(delivery, report, path)
    _check_unconfirmed(delivery, report, path)
    if delivery.guarantee == "at-most-once":
        _check_at_most_once(delivery, written, report, path)
    if delivery.pipe in INDEX_PIPES:
        _check_deriving(connector, report, base)
    if delivery.park_keys and delivery.order_by != "key":
        report.add(
            "E209", (*path, "park-keys"), "parking keeps the order of a key", "write order-by: key, or remove park-keys"
        )
    elif delivery.park_keys and _drops(connector.dead_letter_queue or queue):
        report.add(
            "E209",
            (*path, "park-keys"),
            "what is parked follows its dead letter when that is redriven, and plugin: log keeps none",
            "write another plugin of dead-letter-queue or leave it out, or remove park-keys",
        )
    if delivery.breaker is not None:
        _check_breaker(delivery, report, (*path, "breaker"))
    if delivery.parallelism != 1 and (why := reason(delivery, bool(connector.processors))):
        # What is asked for is refused; auto takes what there is.
        code = "W202" if delivery.parallelism == "auto" else "E209"
        report.add(code, (*path, "parallelism"), f"one task delivers here: {why.says}", why.hint)
    if delivery.timeout <= 0:
        report.add("E103", (*path, "timeout"), "a timeout must be above zero", "write for example 10s")
    if not delivery.retry and delivery.guarantee != "at-most-once":
        for key in sorted(written & set(_RETRYING)):
            report.add(
                "W202", (*path, key), f"without retry nothing is repeated, so {key} has no effect", "add retry: 5"
            )


def _check_breaker(delivery: DeliveryKeys, report: Findings, path: Path) -> None:
    breaker = delivery.breaker
    assert breaker is not None
    if delivery.guarantee == "at-most-once":
        report.add(
            "E209",
            path,
            "at-most-once cannot wait for a destination that is down: it would send its records again",
            "remove breaker, or write guarantee: at-least-once",
        )
    if breaker.pause_max < breaker.pause:
        report.add("E103", (*path, "pause-max"), "pause-max is below pause", "raise it, or lower pause")
    if delivery.on_unavailable == "dead-letter" and breaker.failures > delivery.retry + 1:
        report.add(
            "W202",
            (*path, "failures"),
            f"with on-unavailable: dead-letter a record that failed {delivery.retry + 1} time(s) is a dead letter "
            "before the breaker opens",
            f"write {delivery.retry + 1} or less, or a larger retry",
        )


def _check_reports(connector: ConnectorKeys, report: Findings, base: Path) -> None:
    keys, limit = connector.delivery, Delivery.bulk_timeout
    if keys is not None and "timeout" in keys.model_fields_set:
        limit = max(keys.effective().timeout, LEAST_BULK_TIMEOUT)
    hint = "write a shorter deliveryTimeout, or a longer delivery.timeout"
    _check_kafka(connector.plugin, connector.settings, limit, hint, report, base)


def check_letters(queue: DeadLetterKeys, report: Findings, path: Path) -> None:
    """Reports settings of a dead-letter queue that its writes cannot wait for."""
    if queue.plugin is not None:
        hint = f"write less than {LETTERS_TIMEOUT:g}s"
        _check_kafka(queue.plugin, queue.settings, LETTERS_TIMEOUT, hint, report, path)


def _check_kafka(  # noqa: PLR0917 - what is compared, and where it is said
    plugin: str, settings: Mapping[str, str], limit: float, hint: str, report: Findings, base: Path
) -> None:
    """Reports a `deliveryTimeout` that is not below the timeout of a write: a write waits for the delivery reports of
    its messages, so these must fail before the write is given up."""
    if parse_plugin(plugin).name != "kafka" or "deliveryTimeout" not in settings:
        return
    try:
        reports = parse_duration(settings["deliveryTimeout"])
    except ConfigError:
        return  # reported by the plugin's own check
    if reports >= limit:
        report.add(
            "E209",
            (*base, "settings", "deliveryTimeout"),
            f"a message may be on its way for {reports:g} s, and the write that waits for it for {limit:g} s",
            hint,
        )


def _drops(queue: DeadLetterKeys) -> bool:
    return queue.plugin is not None and parse_plugin(queue.plugin).name == "log"


def _check_pipe(delivery: DeliveryKeys, report: Findings, path: Path) -> None:
    if delivery.pipe in STRICT_PIPES and delivery.order_by == "none":
        report.add(
            "E209",
            (*path, "order-by"),
            f"the pipe {delivery.pipe} promises an order, order-by: none gives it up",
            "write order-by: partition or key, or a pipe without an order (resend-multi, stream)",
        )


def _check_unconfirmed(delivery: DeliveryKeys, report: Findings, path: Path) -> None:
    key = (*path, "max-unconfirmed")
    if delivery.max_unconfirmed == 1 or key not in report.keys:
        return
    if delivery.pipe in ONE_UNCONFIRMED:
        report.add(
            "E209",
            key,
            f"the pipe {delivery.pipe} has one unconfirmed record, not {delivery.max_unconfirmed}",
            "remove max-unconfirmed, or write pipe: resend-multi",
        )
    elif delivery.order_by == "partition" and delivery.pipe != "resend-multi":
        report.add(
            "W202",
            key,
            "with order-by: partition one record per source partition is unconfirmed, whatever max-unconfirmed says",
            "write order-by: key for 64 lanes, or none; where records go in batches, remove max-unconfirmed",
        )
    elif delivery.order_by == "key" and delivery.max_unconfirmed > KEY_LANES:
        report.add(
            "W202",
            key,
            f"order-by: key has {KEY_LANES} lanes of one unconfirmed record each, not {delivery.max_unconfirmed}",
            f"write {KEY_LANES}, or order-by: none",
        )


def _check_at_most_once(delivery: DeliveryKeys, written: set[str], report: Findings, path: Path) -> None:
    if delivery.retry > 0:
        report.add(
            "E209",
            (*path, "retry"),
            "at-most-once never sends twice, retry does",
            "remove retry, or write guarantee: at-least-once",
        )
    if "on-unavailable" in written and delivery.on_unavailable == "wait":
        report.add(
            "E209",
            (*path, "on-unavailable"),
            "at-most-once cannot wait for a destination that is down: it would send its records again",
            "remove on-unavailable (they become dead letters), or write guarantee: at-least-once",
        )


def _check_deriving(connector: ConnectorKeys, report: Findings, base: Path) -> None:
    assert connector.delivery is not None
    for n, processor in enumerate(connector.processors):
        name = parse_plugin(processor.plugin).name
        if name in _DERIVING:
            report.add(
                "E209",
                (*base, "processors", n, "plugin"),
                f"the pipe {connector.delivery.pipe} numbers records before this destination's processors, and "
                f"'{name}' makes several of one",
                "move it to the source or to the pipeline's processors, or write pipe: stream",
            )
