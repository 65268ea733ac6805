"""Rolling series: what a pipeline and its nodes did, in buckets of time, written with what they did."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.series import COARSE, FINE, Bucket, Buckets, Width
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.record.counts import Counts
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.redis_client.script import Script, load
from tests.broker.conftest import Feed

WIDTHS = (FINE, COARSE)
NOW = 1_800_000_000
DAY = 86_400


def total(found: Buckets) -> Bucket:
    out: Bucket = {}
    for bucket in found.values():
        for name, n in bucket.items():
            out[name] = out.get(name, 0) + n
    return out


def read(broker: Broker, width: Width, *nodes: str) -> dict[str, Buckets]:
    return broker.series.read(width, nodes, ("x", "y"))


@pytest.fixture
def sample(tmp_path: Path, broker: Broker) -> Script:
    """Adds figures at any time."""
    shared = (scripts.FOLDER / "_shared.lua").read_text()
    (tmp_path / "part").mkdir()
    (tmp_path / "_shared.lua").write_text(shared)
    (tmp_path / "part" / "sampling.lua").write_text(
        "-- @key series hash\n-- @arg node text\n-- @arg figures json\n-- @arg times text*1000\n"
        "for _, now in ipairs(A.times) do sample(K.series, A.node, cjson.decode(A.figures), tonumber(now)) end\n"
        "return {'ok'}"
    )
    return load(tmp_path, "sampling")


def add(broker: Broker, script: Script, times: Sequence[int], figures: Mapping[str, int]) -> None:
    keys = {"series": broker.keys.series("x")}
    for some in portions(times):
        script(broker.redis, keys, node="", figures=dict(figures), times=[str(now) for now in some])


@pytest.mark.parametrize("width", WIDTHS)
def test_what_was_sealed_and_confirmed_is_in_the_series_of_each_node(feed: Feed, width: Width) -> None:
    m = feed.sealed(10)
    feed.confirm("x", m, [(0, 3)], observed=observed("destinations.x", "latency", [0.2, 0.2, 3.0, 90_000.0]))
    assert total(read(feed.broker, width)["destinations.x"]) == {
        "delivered": 4,
        "confirmed": 4,
        "latency|0.25": 2,
        "latency|5": 1,
        "latency|inf": 1,
    }, "bytes belong to whole micro-batches"
    feed.confirm("x", m, [(4, 9)], observed=observed("destinations.x", "deliver", 3.0))
    found = read(feed.broker, width, "", "sources.a")
    x = total(found["destinations.x"])
    assert (x["delivered"], x["confirmed"], x["bytes"], x["latency|5"]) == (10, 10, 1_000, 1)
    assert total(found[""]) == {"read": 10, "bytes": 1_000, "micro_batches": 1}
    assert total(found["sources.a"]) == {"read": 10}
    assert found["destinations.y"] == {}


@pytest.mark.proves("I5")
def test_what_several_tasks_confirm_is_in_the_series_as_if_one_had(feed: Feed) -> None:
    # Given a micro-batch of ten records, six of them wanted, divided into two shards
    m, shards = feed.sealed(10), feed.broker.shards
    token = feed.lease("x").token
    assert shards.divide("x", m, token, by="key", count=2, matched=6)
    latency = observed("destinations.x", "latency", [0.2])
    # When each word is said twice
    for shard, records in ((0, 2), (1, 4)):
        numbers = RangeSet(((0, records - 1),))
        for _ in range(2):
            counts = Counts(matched=records, delivered=records)
            shards.confirm("x", m, token, shard, numbers, counts, total=10, observed=latency)
        x = total(read(feed.broker, FINE)["destinations.x"])
        assert "bytes" not in x, "bytes belong to whole micro-batches"
        for _ in range(2):
            shards.whole("x", m, token, shard, records)
    # Then all is counted once, and what nobody wanted with the last shard
    x = total(read(feed.broker, FINE)["destinations.x"])
    assert x == {"delivered": 6, "confirmed": 10, "bytes": 1_000, "latency|0.25": 2}


@pytest.mark.proves("I5")
@pytest.mark.usefixtures("twice")
def test_what_is_repeated_is_in_the_series_once(feed: Feed) -> None:
    feed.confirm("x", feed.sealed(10), [(0, 9)])
    feed.sealed(7, {"x": 0, "y": 7})
    assert feed.broker.deliveries.complete_unmatched("x", feed.lease("x").token) == 1
    found = read(feed.broker, FINE, "")
    assert total(found[""]) == {"read": 17, "bytes": 1_700, "micro_batches": 2}
    assert total(found["destinations.x"]) == {"delivered": 10, "confirmed": 17, "bytes": 1_700}


def test_what_is_redelivered_is_told_apart_and_was_confirmed_before(feed: Feed) -> None:
    m = feed.sealed(10)
    feed.confirm("x", m, [(0, 9)], run="r", retention=60.0)
    found = feed.broker.redeliveries.begin("x", "r", feed.lease("x").token)
    feed.confirm("x", m, [(0, 9)], epoch=found)
    assert total(read(feed.broker, FINE)["destinations.x"]) == {
        "delivered": 10,
        "confirmed": 10,
        "bytes": 1_000,
        "redelivered": 10,
    }


def test_two_hours_of_fine_buckets_and_fourteen_days_of_coarse_ones_are_kept_and_no_more(
    broker: Broker, sample: Script
) -> None:
    # Given figures every five minutes for 20 days
    times = range(NOW, NOW + 20 * DAY, 300)
    add(broker, sample, times, {"d": 1})
    # Then each is in its bucket as long as it is kept, and nothing is there that is much older
    for width, kept in ((FINE, 7_200), (COARSE, 14 * DAY)):
        found = read(broker, width)["destinations.x"]
        assert width.span == kept
        wanted = {now - now % width.seconds for now in times if now > times[-1] - kept}
        assert wanted <= found.keys() <= {n - n % width.seconds for n in times}
        assert all(found[at] == {"delivered": 1} for at in wanted)
        assert min(found) >= times[-1] - kept - 2 * width.seconds * width.buckets
    assert broker.redis.hlen(broker.keys.series("x")) == FINE.stretches + COARSE.stretches + 1


def test_a_series_without_a_pause_takes_no_more_than_is_told(broker: Broker, sample: Script) -> None:
    """docs/scale.md has the figure."""
    figures = {"d": 12_345, "p": 12_345, "b": 1_234_567, "t": 12, "C": 9_000, "D": 3_345}
    add(broker, sample, range(NOW, NOW + 14 * DAY, 300), figures)
    add(broker, sample, range(NOW + 14 * DAY, NOW + 14 * DAY + 7_200, 10), figures)
    size: int = broker.redis.memory_usage(broker.keys.series("x"), samples=0)  # type: ignore[assignment]
    assert size < 200_000, size


def test_a_clock_that_goes_to_and_fro_loses_no_figure_and_makes_nothing_grow(broker: Broker, sample: Script) -> None:
    chance = random.Random(1)
    add(broker, sample, [NOW + chance.choice((-200, -100, 0, 100)) for _ in range(3_000)], {"d": 1})
    for width in WIDTHS:
        assert total(read(broker, width)["destinations.x"]) == {"delivered": 3_000}
    texts = broker.redis.hvals(broker.keys.series("x"))
    assert max(len(text) for text in texts) < 110 * FINE.buckets  # type: ignore[union-attr]


def test_a_destination_takes_its_series_along_to_its_new_name_and_leaves_none_behind(feed: Feed) -> None:
    feed.confirm("x", feed.sealed(10), [(0, 9)])
    feed.broker.lifecycle.force_stop()
    feed.broker.versions.rename("x", "z")
    assert total(feed.broker.series.read(FINE, (), ("z",))["destinations.z"])["delivered"] == 10
    feed.broker.redis.srem(feed.broker.keys.destinations, "z")
    feed.broker.versions.forget("z")
    assert not list(feed.broker.redis.scan_iter(f"{feed.broker.keys.prefix}series:z"))
