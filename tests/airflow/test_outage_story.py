"""The story of an outage on a pipeline's page, in a real Chromium (docs/outage.md).

Events come all the time. A destination goes down, the other one goes on, the lag grows, and it is caught up without
anybody's doing.

`CONDUIT_TEST_PICTURES=1` takes the pictures of the document again, by phases of minutes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.api_client import airflow, broker_of, site
from tests.airflow.test_pages import picture
from tests.browser import PICTURES, Tab, tab_of
from tests.faults.conftest import receivers
from tests.faults.parts import Receiver, events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "receivers", "site"]

pytestmark = pytest.mark.timeout(1_200)

PIPELINE = """
version: "2.2"
pipelines:
  - id: orders
    lag-budget: {records: 1000000}
    connectors:
      - {id: shop, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: archive, type: destination, plugin: file, settings: {path: out/archive.jsonl, format: payload}}
      - id: billing
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 20s, retry: 0, order-by: key, max-unconfirmed: 64}
"""
PHASE = 75.0 if PICTURES else 0.0
"""Seconds that a phase goes on for its picture, so that the charts show it."""
EACH = 40
"""Events a round."""


class Life:
    """Events that come, and runs that follow each other, until the block ends."""

    def __init__(self, home: Path) -> None:
        self.home, self.made, self._over = home, 0, threading.Event()
        self._thread = threading.Thread(target=self._live, name="life")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _live(self) -> None:
        for n in range(1_000_000):
            if self._over.is_set():
                return
            events(self.home / "data", EACH, start=self.made)
            self.made += EACH
            run_once("orders", f"scheduled__{n}")
            self._over.wait(1.0)


@pytest.fixture
def billing(home: Path, receivers: Callable[..., Receiver]) -> Receiver:
    receiver = receivers("--unavailable", "0", "--limited", "0")
    receiver.mode("up")
    write_pipeline(home, "orders", PIPELINE.replace("URL", receiver.url))
    return receiver


@pytest.mark.slow
def test_a_destination_that_goes_down_is_seen_on_the_page_and_caught_up(
    site: str, browser: str, billing: Receiver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_tasks.airflow.api.live.CURVES", 1.0)
    life = Life(home)
    with life.going_on():
        asyncio.run(_story(site, browser, billing))
    run_once("orders", "last")
    # Then nothing was lost, neither by the one that was down nor by the other
    broker = broker_of("orders")
    for name in ("archive", "billing"):
        assert broker.deliveries.get(name).counters["delivered"] == life.made
    broker.close()


BEHIND = "[...document.querySelectorAll('.destinations .behind')].map((each) => each.textContent)"
STATE = "document.querySelector('#bottleneck').textContent"


async def _story(site: str, browser: str, billing: Receiver) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1000)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/orders?range=900")
        await tab.until("document.querySelectorAll('.chart canvas').length === 6")
        # Given both are delivered to
        await tab.until(f"{BEHIND}.every((text) => text === 'up to date')")
        await _passes(tab, "outage-1")
        # When one is down
        await asyncio.to_thread(billing.mode, "down")
        await tab.until(f"{STATE}.startsWith('Bottleneck: destinations.billing')")
        await tab.until(f"/^\\d+ behind/.test({BEHIND}[1])")
        first = await _behind(tab)
        await _passes(tab, "outage-2")
        # Then its answer is told, with a link to the log of the task that got it
        wrong = "document.querySelector('#wrong').textContent"
        await tab.until(f"/^billing does not answer since .*, last tried .*503/.test({wrong})")
        label = await tab.js("document.querySelector('#wrong a').ariaLabel")
        assert label.startswith("The log of destinations.billing in run scheduled__")
        assert "/tasks/destinations.billing" in await tab.js("document.querySelector('#wrong a').getAttribute('href')")
        await picture(tab, "outage")
        # And what waits for it grows, and the other one goes on
        await tab.until(f"parseInt({BEHIND}[1].replace(/\\D*behind.*/, '').replace(/\\D/g, '')) > {first}")
        await tab.until(f"{BEHIND}[0] === 'up to date'")
        # When it is back
        await asyncio.to_thread(billing.mode, "up")
        # Then it is caught up, and nobody did anything, and its answer is gone
        await tab.until(f"{wrong} === ''")
        await tab.until(f"{BEHIND}.every((text) => text === 'up to date')")
        await _passes(tab, "outage-3")


async def _behind(tab: Tab) -> int:
    said: Any = await tab.js(f"{BEHIND}[1]")
    return int("".join(c for c in said.partition("behind")[0] if c.isdigit()) or 0)


async def _passes(tab: Tab, name: str) -> None:
    await asyncio.sleep(PHASE)
    await tab.picture(name)
