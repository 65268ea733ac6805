"""Options that make the name of a pipe untrue without contradicting another option (W205): a table of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conduit_tasks.pipeline.findings import Findings, Path
from conduit_tasks.pipeline.model import DeliveryKeys
from conduit_tasks.topology import INDEX_PIPES

ONE_UNCONFIRMED = frozenset({"resend", "sequential"})
"""Pipes with at most one unconfirmed record in all (SEMANTICS O1, O4)."""
SEVERAL = frozenset({"resend-multi"})
"""Pipes with several unconfirmed records (O2)."""
RESENDING = frozenset({"resend", "resend-multi"})
"""Pipes that promise to send a record again if it is not confirmed in time (O1, O2)."""
CONTINUOUS = frozenset({"sequential", "continuous", "continuous-relaxed"})
"""Pipes in which no record overtakes an unconfirmed one; they need a route below that re-sends (O4, O6, O6r)."""
AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True)
class Rule:
    """One rule of W205. `key`: the option at fault; the finding is placed at this option if it is written, else at the
    pipe's name. `when`: returns whether the effective options make the name untrue. `written`: applies only if the
    option is written."""

    pipes: frozenset[str]
    key: str
    when: Callable[[DeliveryKeys], bool]
    says: str
    hint: str
    written: bool = False


RULES = (
    Rule(
        RESENDING,
        "retry",
        lambda d: not d.retry and d.guarantee != AT_MOST_ONCE,
        "sends again what was not confirmed, and here nothing is sent again within a run",
        "remove retry, or write pipe: stream",
    ),
    Rule(
        CONTINUOUS,
        "retry",
        lambda d: not d.retry and d.guarantee != AT_MOST_ONCE,
        "has nothing overtake what was not confirmed, and with retry: 0 a record that fails once may be given up for "
        "the next one: nothing is sent again within a run",
        "write retry: 5, or pipe: stream",
        written=True,
    ),
    Rule(
        RESENDING | CONTINUOUS,
        "guarantee",
        lambda d: d.guarantee == AT_MOST_ONCE,
        "loses nothing, and guarantee: at-most-once gives up what may have been sent: nothing is sent again",
        "write pipe: stream, or guarantee: at-least-once",
    ),
    Rule(
        CONTINUOUS,
        "on-unavailable",
        lambda d: d.on_unavailable == "dead-letter" and d.guarantee != AT_MOST_ONCE,
        "has nothing overtake what was not confirmed, and with on-unavailable: dead-letter what comes after an outage "
        "overtakes what came in it",
        "remove on-unavailable (it is waited for), or write pipe: stream",
        written=True,
    ),
    Rule(
        SEVERAL,
        "max-unconfirmed",
        lambda d: d.max_unconfirmed == 1,
        "has several records on their way, not one",
        "remove max-unconfirmed, or write pipe: resend",
    ),
    Rule(
        SEVERAL,
        "order-by",
        lambda d: d.order_by == "partition" and d.max_unconfirmed > 1,
        "has several records on their way, and with order-by: partition there is one per source partition",
        "write order-by: key for 64 lanes, or none; or pipe: resend",
    ),
)
"""No option makes the names `stream`, `monotonic` and `monotonic-relaxed` untrue: the first promises nothing about an
unconfirmed record, and with the others a record that is given up leaves a gap (O3, O5, O5r)."""


def check_name(delivery: DeliveryKeys, report: Findings, path: Path) -> None:
    """Reports options that make the pipe's name untrue. `delivery`: the effective options, with the pipe's defaults;
    `path`: their place in the file."""
    for rule in RULES:
        place = (*path, rule.key)
        there = place in report.keys
        if delivery.pipe in rule.pipes and rule.when(delivery) and (there or not rule.written):
            report.add("W205", place if there else (*path, "pipe"), f"the pipe {delivery.pipe} {rule.says}", rule.hint)


def check_batch_wise(
    delivery: DeliveryKeys, plugin: str, report: Findings, path: Path, *, one_task: bool, keeps_index: bool
) -> None:
    """Reports what has no effect if the destination writes many records at a time: a pipe with one unconfirmed record,
    `order-by` and `max-unconfirmed`. `one_task`: whether one task delivers; of several, `order-by` says which task gets
    a record. `keeps_index`: whether the destination stores a number of the last row, which is counted by lane."""
    if delivery.pipe in ONE_UNCONFIRMED:
        report.add(
            "W205",
            (*path, "pipe"),
            f"the pipe {delivery.pipe} has one record on its way, and '{plugin}' writes many at a time",
            "write pipe: stream",
        )
    numbered = keeps_index and (delivery.pipe in INDEX_PIPES or delivery.guarantee != "at-least-once")
    place = (*path, "order-by")
    if one_task and place in report.keys and delivery.order_by != "partition" and not (delivery.park_keys or numbered):
        report.add(
            "W202",
            place,
            f"'{plugin}' writes batches of all records in their order, one after the other, whatever order-by says: a "
            "record that fails is waited for by all that follow",
            "remove order-by",
        )
    place = (*path, "max-unconfirmed")
    # With order-by: partition, and with these pipes, `validate_delivery` says so already.
    said = delivery.order_by == "partition" or delivery.pipe in ONE_UNCONFIRMED
    if place in report.keys and delivery.max_unconfirmed > 1 and not said:
        report.add(
            "W202",
            place,
            f"'{plugin}' writes many records at a time, one write after the other, whatever max-unconfirmed says",
            "remove max-unconfirmed",
        )
