"""Records read in each five minutes, as a list of a thousand pipelines reads them: the same as by all figures."""

from __future__ import annotations

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.series import COARSE, FINE, buckets, reads
from conduit_tasks.metrics.curves import sums

START = 1_700_000_000 // COARSE.seconds * COARSE.seconds
TIMES = range(START, START + 24 * COARSE.seconds, COARSE.seconds)


def coarse(*of: tuple[int, str]) -> list[str]:
    """Stretches of wide buckets: bucket after `START` → figures."""
    found: dict[int, list[str]] = {}
    for n, figures in of:
        at = START // COARSE.seconds + n
        found.setdefault(at // COARSE.buckets, []).append(f"{at % COARSE.buckets}{figures}")
    return [";".join([str(stretch), *parts]) for stretch, parts in sorted(found.items())]


@pytest.mark.parametrize(
    "texts",
    [
        ["", "", ""],
        ["", *coarse((0, "r7m1b99"), (3, "m1b5r20"), (23, "x3r4f1"))],
        [f'{{"at": {(START + 7_000) // FINE.seconds}, "r": 5, "m": 1}}', *coarse((22, "m1r8"), (23, "r1A4"))],
        [f'{{"at": {(START + 90_000) // FINE.seconds}, "r": 5}}', *coarse((-3, "r8"), (24, "r9"), (5, "m4"))],
        # The clock went to and fro: a bucket is there twice.
        ["", *coarse((4, "r1"), (5, "r2"), (4, "r3"))],
        # What an earlier stretch of the same field left behind.
        ["", "1;0r5;1r6", *coarse((1, "r2"))],
    ],
)
def test_they_are_those_of_the_whole_series(texts: list[str]) -> None:
    whole = sums(buckets(texts, COARSE), TIMES, COARSE.seconds)
    assert reads(texts, TIMES) == [figures.get("read", 0) for figures in whole]


def test_a_glance_asks_for_the_stretches_that_hold_the_last_two_hours(broker: Broker) -> None:
    from conduit_tasks.broker.glances import BARS, glances
    from conduit_tasks.topology import Pipeline

    # Given a series with something in each five minutes of the last two hours
    last = int(broker.access.now()) // COARSE.seconds
    for n in range(BARS):
        at = last - BARS + 1 + n
        field, part = f"|300|{at // COARSE.buckets % COARSE.stretches}", f";{at % COARSE.buckets}m1r{n + 1}"
        head = broker.access.field(broker.keys.series(""), field) or str(at // COARSE.buckets)
        broker.access.redis.hset(broker.keys.series(""), field, head + part)
    # Then each is there
    pipeline = Pipeline(id=broker.access.pipeline, file="", line=0, sources=(), destinations=())
    (seen,) = glances(broker.access.redis, [pipeline])
    if int(broker.access.now()) // COARSE.seconds == last:
        assert seen.recent == list(range(1, BARS + 1))
