"""A pipeline's page as it goes, in a real Chromium: one connection, figures that move and nothing else that does."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conduit_tasks.airflow.api import live
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.record.counts import Counts
from tests.airflow.api_client import Airflow, airflow, broker_of, delivered, site
from tests.airflow.test_pages import picture
from tests.browser import Tab, tab_of
from tests.faults.parts import events
from tests.micro_batch.harness import here, plan_run, run_once, write_pipeline

__all__ = ["airflow", "delivered", "site"]

pytestmark = pytest.mark.timeout(900)

SHIFTS = """
window.shift = 0; window.moved = [];
new PerformanceObserver((list) => list.getEntries().forEach((one) => {
  window.shift += one.value;
  window.moved.push(...one.sources.map((each) => each.node?.id || each.node?.className));
})).observe({type: 'layout-shift', buffered: false});
"""
HIDE = (
    "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true}),"
    "document.dispatchEvent(new Event('visibilitychange'))"
)
SHOW = "delete document.hidden, document.dispatchEvent(new Event('visibilitychange'))"
MARKS = "[...document.querySelectorAll('.bottleneck')].map((one) => one.id)"
STATE = "document.querySelector('#bottleneck').textContent"


def node(name: str, what: str = "") -> str:
    return f"document.querySelector('#n-{name.replace('.', chr(92) * 2 + '.')}{what and ' ' + what}')"


@pytest.fixture
def pipeline(home: Path, delivered: None) -> Broker:
    """`p` with a source processor, one for all and one of a destination, and a filter; ten records are delivered."""
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    stamp = "{id: stamp, plugin: field.set, settings: {field: .Metadata.way, value: '1'}}"
    text = text.replace("key: k}}", f"key: k}}, processors: [{stamp}]}}")
    text = text.replace("format: payload}}", "format: payload}, trigger: {filters: [{exact: {way: '1'}}]}}")
    text = text.replace("delivery: {timeout: 20s}", f"delivery: {{timeout: 20s}}\n        processors: [{stamp}]")
    write_pipeline(home, "p", text + f"    processors: [{stamp}, {stamp.replace('stamp', 'route')}]\n")
    return broker_of("p")


@pytest.mark.slow
def test_a_page_goes_as_its_pipeline_goes_by_one_connection_and_nothing_shifts(
    site: str, browser: str, pipeline: Broker, home: Path
) -> None:
    asyncio.run(_goes(site, browser, pipeline, home))


async def _goes(site: str, browser: str, broker: Broker, home: Path) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1100)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        # Given the page of a pipeline that has nothing to do
        await tab.until(f"document.querySelector('.flow') && {STATE} === 'Nobody waits for anybody.'")
        text = await tab.js("document.querySelector('.flow').innerText")
        for said in (
            "in",
            "· stamp: field.set",
            "processors",
            "· route: field.set",
            "spool",
            "2 sealed",
            "1 filter",
            "web",
            "up to date",
        ):
            assert said in text, said
        assert await tab.js("document.querySelector('#front').textContent") == "all of it is done; nothing is in flight"
        await tab.until("document.querySelectorAll('.chart canvas').length === 6")
        await tab.js(SHIFTS)
        began = len(tab.requests)

        # When a micro-batch is open
        events(home / "data", 15)
        await asyncio.to_thread(plan_run, "p", "scheduled__1")
        await tab.until(f"{STATE}.startsWith('Bottleneck: sources.in: the open micro-batch is read from it.')")
        assert await tab.js(f"{node('sources.in')}.classList.contains('bottleneck')")
        assert await tab.js(f"{node('destinations.web', '.state')}.textContent") == "waits for sources.in"
        await tab.until("document.querySelector('#front').textContent === 'open: it is being read · 5 records'")
        # And delivered to the one, while the other is stopped
        broker.lifecycle.halt_destination("web")
        await asyncio.to_thread(run_once, "p", "scheduled__1")
        await tab.until(f"{STATE} === 'Bottleneck: destinations.web: it is stopped. sources.in waits for it.'")
        assert await tab.js(f"{node('destinations.web')}.classList.contains('failed')")
        await tab.until(
            "['5 of 5', '0 of 5'].every((text) => document.querySelector('.stages').innerText.includes(text))"
        )
        stages = await tab.js(
            "[...document.querySelectorAll('.stages li')].map((li) => li.innerText.replaceAll('\\n', ' '))"
        )
        assert [re.sub(" +", " ", stage) for stage in stages] == [
            *("Read 1 of 1 source", "Processed yes", "Sealed yes"),
            *("Delivered to file 5 of 5", "Delivered to web 0 of 5", "Acked 0 of 1 source"),
        ]
        assert re.match(
            r"5 behind · \d+ s", await tab.js("document.querySelectorAll('.destinations .behind')[1].textContent")
        )
        # And its rate is that of the last seconds
        await tab.until("/^0\\.\\d|^[1-9]/.test(document.querySelectorAll('.destinations .rate')[0].textContent)")
        # And a task delivers it
        broker.lifecycle.start_destination("web")
        lease = broker.leases.acquire("destinations.web", "scheduled__1@host:7", ttl=600.0)
        ranges = RangeSet(((0, 1),))
        broker.deliveries.confirm("web", 3, lease.token, ranges, Counts(matched=2, delivered=2))
        await tab.until(f"{STATE}.startsWith('Bottleneck: destinations.web: it has the oldest micro-batch')")
        await tab.until("document.querySelector('.stages').innerText.includes('2 of 5')")
        link = f"{node('destinations.web', '.lease a')}"
        await tab.until(f"{link} !== null")
        assert await tab.js(f"{link}.getAttribute('href')") == "/dags/p/runs/scheduled__1/tasks/destinations.web"
        assert await tab.js(f"{link}.ariaLabel") == "The log of destinations.web in run scheduled__1"
        # And all that by one connection, or the one that follows it
        await asyncio.sleep(3)
        asked = [url.partition("/v1/")[2].partition("?")[0] for url in tab.requests[began:]]
        assert set(asked) <= {"pipelines/p/live"}, asked
        assert len(asked) <= 4
        assert await tab.js("window.shift") < 0.001, await tab.js("window.moved.join()")

        await picture(tab, "live-delivering")
        await tab.size(1280, 580)
        await tab.picture("live")
        await tab.size(1280, 1100)
        await _looks(tab, broker)
        # When nobody looks, nothing is asked, and no stream is open
        await tab.js(HIDE)
        deadline = time.monotonic() + 30
        while live._streams:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert await asked_within(tab, 4) == []
        # And somebody looks again
        broker.lifecycle.halt_destination("web")
        await tab.js(SHOW)
        await tab.until(f"{STATE} === 'Bottleneck: destinations.web: it is stopped. sources.in waits for it.'")
        lease.release()
        # Another page ends it
        await tab.js("location.hash = '#/'")
        await tab.until("document.querySelector('#p-p')")
        deadline = time.monotonic() + 30
        while live._streams:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        # Which asks for nothing either while nobody looks
        await tab.js(HIDE)
        await asked_within(tab, 1)
        assert await asked_within(tab, 5) == []
        await tab.js(SHOW)
        assert await asked_within(tab, 5) != []
        assert tab.errors == []


async def asked_within(tab: Tab, seconds: float) -> list[str]:
    """What the page asks for in this time."""
    before = len(tab.requests)
    await asyncio.sleep(seconds)
    await tab.js("1")
    return tab.requests[before:]


async def _looks(tab: Tab, broker: Broker) -> None:
    """Dark, narrow, by the keyboard, and as a table."""
    await tab.js("document.querySelector('#t-topology summary').click()")
    await tab.until("document.querySelector('#t-topology tbody').innerText.includes('it has the oldest micro-batch')")
    rows = await tab.js("[...document.querySelectorAll('#t-topology tbody th')].map((th) => th.textContent)")
    assert rows == ["sources.in", "processors", "destinations.file", "destinations.web"]
    await tab.js("document.querySelector('#t-topology summary').click()")
    # What has the focus keeps it while figures change
    await tab.js(f"{node('destinations.web', '.lease a')}.focus()")
    at = await tab.js("document.querySelectorAll('.destinations .behind')[1].textContent")
    await tab.until(f"document.querySelectorAll('.destinations .behind')[1].textContent !== {at!r}")
    assert "scheduled__1" in await tab.js("document.activeElement.ariaLabel")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    await tab.call("Emulation.setEmulatedMedia", features=dark)
    await tab.until("document.documentElement.classList.contains('dark')")
    await picture(tab, "live-dark")
    await tab.size(400, 2_400)
    assert await tab.js("document.documentElement.scrollWidth <= 400"), "nothing is wider than the window"
    parts = "[...document.querySelectorAll('.node, .wire, .stages li')]"
    assert await tab.js(f"{parts}.every((part) => part.getBoundingClientRect().right <= 400)")
    await picture(tab, "live-narrow")
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    await tab.call("Emulation.setEmulatedMedia", features=light)
    await tab.size(1280, 1100)


@pytest.mark.slow
def test_a_page_that_gets_no_stream_asks_from_time_to_time_and_gets_one_later(
    site: str, browser: str, pipeline: Broker, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    asyncio.run(_asks(site, browser, pipeline, monkeypatch))


async def _asks(site: str, browser: str, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 0)
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until("document.querySelector('.flow')")
        await tab.until("document.querySelectorAll('.chart canvas').length === 6")
        assert any(url.endswith("/v1/pipelines/p/topology") for url in tab.requests)
        broker.lifecycle.force_stop()
        await tab.until("document.querySelector('#status').textContent === 'stopped'")
        assert not live._streams
        # Redis is gone, and says so
        monkeypatch.setattr(live, "MOST", 64)
        began = time.monotonic()
        while not live._streams:
            assert time.monotonic() < began + 90
            await asyncio.sleep(0.2)
        broker.lifecycle.start()
        await tab.until("document.querySelector('#status').textContent === 'running'")
        assert await tab.js("document.querySelector('#problem').hidden")
        assert all("503" in error for error in tab.errors), tab.errors


@pytest.mark.slow
def test_a_destination_that_goes_from_the_file_goes_from_the_page(
    site: str, browser: str, pipeline: Broker, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    # The file is read again where a stream begins: not after 30 s here.
    monkeypatch.setattr(live, "LASTS", 2.0)
    asyncio.run(_goes_away(site, browser, home))


async def _goes_away(site: str, browser: str, home: Path) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until(f"{node('destinations.web')} && document.querySelectorAll('.chart canvas').length === 6")
        await tab.until("document.querySelector('#c-latency').innerText.includes('web p99')")
        file = home / "include" / "pipelines" / "p.yaml"
        before, _, after = file.read_text().partition("      - id: web\n")
        write_pipeline(home, "p", before.rstrip() + "\n    processors:" + after.partition("\n    processors:")[2])
        await tab.until(f"document.querySelector('.flow') && !{node('destinations.web')}", 60)
        await tab.until("!document.querySelector('#c-latency').innerText.includes('web')")
        assert await tab.js(f"{node('destinations.file')} !== null")
        # The curves of a file without it come before its page is drawn anew
        assert tab.errors == []


WIDE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
"""
DESTINATION = "      - {id: ID, type: destination, plugin: file, settings: {path: out/ID.jsonl}}\n"


@pytest.mark.slow
def test_two_hundred_destinations_are_shown_in_a_drawing_that_scrolls_by_itself(
    site: str, browser: str, home: Path, airflow: Airflow
) -> None:
    write_pipeline(home, "p", WIDE + "".join(DESTINATION.replace("ID", f"d{n:03d}") for n in range(200)))
    events(home / "data", 20)
    broker = broker_of("p")
    broker.lifecycle.register(["in"], [f"d{n:03d}" for n in range(200)])
    asyncio.run(_wide(site, browser, broker))


def sealed() -> None:
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)


async def _wide(site: str, browser: str, broker: Broker) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1000)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until("document.querySelectorAll('.flow .destinations .lane').length === 200")
        broker.lifecycle.halt_destination("d150")
        await asyncio.to_thread(sealed)
        await tab.until("document.querySelectorAll('.failed').length === 1")
        assert await tab.js("document.querySelector('.flow').clientHeight < 700"), "it scrolls by itself"
        # The bottleneck is a key away
        await tab.until(f"{STATE}.startsWith('Bottleneck: destinations.d150')")
        await tab.js("document.querySelector('#to-bottleneck').focus()")
        await tab.key("Enter", 13, "\r")
        place = f"{node('destinations.d150')}.getBoundingClientRect()"
        await tab.until(f"{place}.top > 0 && {place}.bottom < innerHeight")
        assert await tab.js("document.querySelector('.flow').tabIndex") == 0
        assert await tab.js("document.querySelectorAll('.stages li').length") == 4
        await picture(tab, "live-wide")
        assert tab.errors == []


@pytest.mark.slow
def test_a_processor_that_stops_the_pipeline_is_marked_and_what_waits_for_it_is_not_at_fault(
    site: str, browser: str, home: Path, delivered: None
) -> None:
    # Given a processor that needs a field which raw data has not
    text = (home / "include" / "pipelines" / "p.yaml").read_text().replace("format: jsonl, settle: 0s, key: k", "TEXT")
    text = text.replace("TEXT", "format: text, settle: 0s")
    way = "{id: up, plugin: field.set, settings: {field: .Payload.After.way, value: '1'}}"
    write_pipeline(home, "p", f"{text}    processors: [{way}]\n")
    events(home / "data", 5, start=10)
    # When it is met, by a run whose destinations end with work left
    plan_run("p", "run")
    broker = broker_of("p")
    for each in ("file", "web"):
        broker.runs.tell_at_work("run", f"destinations.{each}", -1)
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
        with suppress(PipelineStopped):
            process(context, here, 5.0)
    asyncio.run(_stopped(site, browser, broker))


async def _stopped(site: str, browser: str, broker: Broker) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1000)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        # Then its node is marked, as the only one at fault, and the link goes there
        await tab.until(f"{STATE}.startsWith('Bottleneck: processors: the pipeline is degraded, by its first error.')")
        assert await tab.js(MARKS) == ["n-processors"]
        assert await tab.js("[...document.querySelectorAll('.failed')].map((one) => one.id)") == ["n-processors"]
        assert await tab.js("[...document.querySelectorAll('.flow .state')].map((one) => one.textContent)") == [
            *("waits for processors", "stopped the pipeline", "takes more"),
            *("waits for processors", "waits for processors"),
        ]
        assert "processors/up" in await tab.js("document.querySelector('#wrong').textContent")
        # And its stage has failed
        said = "open: the pipeline was degraded before it was sealed · 5 records"
        assert await tab.js("document.querySelector('#front').textContent") == said
        stages = await tab.js("[...document.querySelectorAll('.stages .small')].map((one) => one.textContent)")
        assert stages[:3] == ["1 of 1 source", "failed", "not yet"]
        await picture(tab, "live-processor")
        # What is about to be sealed is marked at the spool
        broker.lifecycle.start()
        broker.lifecycle.fail("seal", "a handler raised", "handler")
        await tab.until(f"{STATE}.startsWith('Bottleneck: seal: ')")
        assert await tab.js(MARKS) == ["n-seal"]
        # And a pipeline that somebody stopped is no link, as it is no node
        broker.lifecycle.start()
        broker.lifecycle.force_stop()
        await tab.until(f"{STATE}.startsWith('Bottleneck: p: somebody stopped the pipeline.')")
        assert await tab.js("document.querySelector('#to-bottleneck').hidden")
        assert tab.errors == []
