"""One place defines every metric: what is told, and what the page says, are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from conduit_tasks.metrics.definitions import METRICS, STATE, Sample, sample
from conduit_tasks.metrics.histogram import added, histograms, observed
from conduit_tasks.metrics.prometheus import exposition

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_lists_exactly_the_metrics_that_are_defined() -> None:
    script = ROOT / "scripts" / "metrics_page.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "python scripts/metrics_page.py"


def test_every_metric_is_told_of_even_before_it_has_a_figure() -> None:
    found = {f.name for f in text_string_to_metric_families(exposition(STATE, list[Sample]).decode())}
    # The parser takes the suffix of a counter off
    assert found == {f"conduit_{m.name}" for m in STATE}
    assert all(METRICS[m.name] is m for m in STATE)


def test_a_histogram_told_in_parts_is_the_one_told_at_once() -> None:
    # Given durations on, below and above the bounds, one of clocks that differ among them
    seconds = [0.05, 0.1, 0.1001, 3, 100_000, -4]
    parts = added([observed("n", "w", s) for s in seconds])
    # When
    both = [histograms({k: str(v) for k, v in of.items()}) for of in (parts, observed("n", "w", seconds))]
    # Then
    assert both[0]["n", "w"].counts == both[1]["n", "w"].counts
    assert both[0]["n", "w"].counts[:2] == (3, 1)
    assert both[0]["n", "w"].counts[-1] == 1
    assert abs(both[0]["n", "w"].sum - 100_003.2501) < 0.01
    text = exposition(STATE, lambda: [sample("stage_seconds", both[0]["n", "w"], "p", "n", "w")]).decode()
    assert 'conduit_stage_seconds_bucket{le="0.1",node="n",pipeline="p",stage="w"} 3.0' in text
    assert 'le="86400"' in text
    assert 'conduit_stage_seconds_count{node="n",pipeline="p",stage="w"} 6.0' in text


def test_a_bound_that_is_none_any_more_is_counted_above_all() -> None:
    found = histograms({"n|w|7": "2", "n|w|ms": "14000"})["n", "w"]
    assert (found.count, found.counts[-1], found.sum) == (2, 2, 14.0)
