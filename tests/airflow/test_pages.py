"""The pages by themselves, in a real Chromium: charts, the list of many pipelines, a narrow window, the keyboard.

`tests/stack/test_pages.py` looks at them within the real Airflow.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.redis_client.script import Script, load
from tests.airflow.api_client import PIPELINE, Airflow, airflow, broker_of, delivered, site
from tests.browser import Tab, tab_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "delivered", "site"]

pytestmark = pytest.mark.timeout(900)
LOOK = os.environ.get("CONDUIT_TEST_LOOK", "")
"""A folder to which pictures of what was tested are written, for eyes."""


@pytest.fixture
def sample(tmp_path: Path) -> Script:
    """Adds figures to a series at any time."""
    (tmp_path / "sampling" / "part").mkdir(parents=True)
    (tmp_path / "sampling" / "_shared.lua").write_text((scripts.FOLDER / "_shared.lua").read_text())
    (tmp_path / "sampling" / "part" / "sampling.lua").write_text(
        "-- @key series hash\n-- @arg node text\n-- @arg rest text*2000\n"
        "for i = 1, #A.rest, 2 do sample(K.series, A.node, cjson.decode(A.rest[i + 1]), tonumber(A.rest[i])) end\n"
        "return {'ok'}"
    )
    return load(tmp_path / "sampling", "sampling")


def history(script: Script, pipeline: str = "p", seconds: int = 7_200) -> None:
    """Two hours in which the web was down for a while: what came waits, and is caught up with."""
    import orjson

    broker = broker_of(pipeline)
    now = int(time.time()) - 30
    read, file, web, behind = [], [], [], 0
    for at in range(now - seconds, now, 10):
        phase = (at - now) / seconds
        came = round(200 + 80 * math.sin(phase * 20))
        down = -0.6 < phase < -0.35
        went = 0 if down else min(came + behind, 480)
        behind += came - went
        read += [str(at), orjson.dumps({"r": came, "b": came * 300, "m": 1}).decode()]
        file += [str(at), orjson.dumps({"d": came, "p": came, "b": came * 300, "A": came}).decode()]
        refused = 4 if went and came % 7 == 0 else 0
        slow = {"D": went // 2, "F": went // 2} if behind else {"B": went - went // 50, "D": went // 50}
        sent = {"d": went - refused, "x": refused, "p": went, "b": went * 300, "t": 30 if down else refused, **slow}
        web += [str(at), orjson.dumps({k: n for k, n in sent.items() if n}).decode()]
    for key, rest in (("", read), ("file", file), ("web", web)):
        for n in range(0, len(rest), 2_000):
            keys = {"series": broker.keys.series(key)}
            script(broker.redis, keys, node="", rest=rest[n : n + 2_000])


async def picture(tab: Tab, name: str) -> None:
    import base64

    if LOOK:
        found = await tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (Path(LOOK) / f"{name}.png").write_bytes(base64.b64decode(found["data"]))


@pytest.mark.slow
def test_charts_show_what_happened_are_zoomed_and_read_by_the_keyboard_and_have_a_table(
    site: str, browser: str, delivered: None, sample: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(sample)
    monkeypatch.setattr("conduit_tasks.airflow.api.live.CURVES", 1.0)
    asyncio.run(_charts(site, browser))


async def _charts(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1900)
        # Given the page of a pipeline, light and dark, wide and narrow
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until("document.querySelectorAll('.chart canvas').length === 6")
        await tab.until("document.querySelector('.chart .u-legend')")
        marks = "[...document.querySelectorAll('#c-latency .u-marker')].map((one) => one.style.borderStyle).join()"
        assert (await tab.js(marks)).endswith("solid,dotted,solid,dotted"), "p99 is another line"
        await picture(tab, "charts")
        await tab.size(1280, 1010)
        await tab.js("document.querySelector('section').scrollIntoView()")
        await tab.picture("charts")
        await tab.size(1280, 1900)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await tab.call("Emulation.setEmulatedMedia", features=dark)
        await tab.until("document.documentElement.classList.contains('dark')")
        await asyncio.sleep(0)
        await picture(tab, "charts-dark")
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        await tab.size(400, 3_000)
        await tab.until("document.querySelector('#c-lag canvas').getBoundingClientRect().width < 400")
        await picture(tab, "charts-narrow")
        assert await tab.js("document.documentElement.scrollWidth <= 400"), "nothing is wider than the window"
        await tab.size(1280, 1900)
        await tab.until("document.querySelector('#c-lag canvas').getBoundingClientRect().width > 320")

        # When the keyboard looks at a moment, then it is told in words
        await tab.js("document.querySelector('#c-throughput').focus()")
        await tab.key("ArrowLeft", 37)
        spoken = "document.querySelector('#c-throughput ~ .spoken').textContent"
        await tab.until(rf"/UTC|: read .*file .*web .*\/s/.test({spoken})")
        # And it zooms all charts, and shows all again
        await tab.key("+", 187, "+")
        await tab.until("!document.querySelector('#zoom-all').disabled")
        await tab.until("document.querySelector('#c-throughput canvas')")
        await tab.key("0", 48, "0")
        await tab.until("document.querySelector('#zoom-all').disabled")
        # And Enter says what ran then
        await tab.key("Enter", 13, "\r")
        await tab.until("document.querySelector('#moment-batches[href*=until]')")
        assert "start_date_lte" in await tab.js("document.querySelector('#moment-runs').href")
        # And the figures are a table, too
        await tab.js("document.querySelector('#t-lag summary').click()")
        await tab.until("document.querySelectorAll('#t-lag tbody tr').length > 20")
        # And dragging zooms all of them
        box = await tab.js(
            "JSON.parse(JSON.stringify(document.querySelector('#c-age .u-over').getBoundingClientRect()))"
        )
        y = box["y"] + 40
        for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseReleased", 0.7)):
            await tab.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box["x"] + box["width"] * share,
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
            )
        await tab.until("!document.querySelector('#zoom-all').disabled")
        await picture(tab, "charts-zoomed")
        # And the zoom stays while the page is drawn again, without a shift
        await tab.js(
            "window.shift = 0, window.drawn = 0,"
            "new PerformanceObserver((list) => list.getEntries().forEach((one) => { window.shift += one.value; }))"
            ".observe({type: 'layout-shift', buffered: false}),"
            "new MutationObserver(() => { window.drawn += 1; })"
            ".observe(document.querySelector('#t-lag'), {childList: true, subtree: true})"
        )
        await tab.until("window.drawn >= 2")
        assert not await tab.js("document.querySelector('#zoom-all').disabled")
        assert await tab.js("window.shift") < 0.01
        # And another range is in the address
        await tab.js("document.querySelector('#r-86400').click()")
        await tab.until("location.hash.includes('range=86400') && document.querySelector('#r-86400[aria-current]')")
        # And the moment's micro-batches are a click away
        await tab.js("location.hash = '#/p/micro-batches?until=2020-01-01'")
        await tab.until("document.querySelector('#page').innerText.includes('up to 2020-01-01')")
        assert "None was opened yet" in await tab.js("document.querySelector('#page').innerText")
        assert tab.errors == []


@pytest.mark.slow
def test_a_thousand_pipelines_are_listed_with_what_needs_somebody_first(
    site: str, browser: str, home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, sample: Script
) -> None:
    ids = [f"feed-{n:04d}" for n in range(1_000)]
    text = PIPELINE.replace("URL", "http://localhost:1/")
    pipelines = text[text.index("  - id: p") :]
    write_pipeline(
        home,
        "many",
        'version: "2.2"\npipelines:\n' + "".join(pipelines.replace("id: p\n", f"id: {id}\n") for id in ids),
    )
    monkeypatch.setattr(type(airflow), "get_authorized_dag_ids", lambda *_, **__: set(ids))
    for id in ("feed-0003", "feed-0500", "feed-0999"):
        broker_of(id).lifecycle.register(["in"], ["file", "web"])
    broker_of("feed-0500").lifecycle.fail("destinations.web", "the disk is full", "OSError")
    broker_of("feed-0999").lifecycle.halt_destination("web")
    history(sample, "feed-0003")
    asyncio.run(_many(site, browser))


async def _many(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/")
        await tab.until("document.querySelectorAll('tbody tr').length >= 50")
        first = "[...document.querySelectorAll('a[id^=p-]')].slice(0, 3).map((a) => a.textContent).join()"
        assert await tab.js(first) == "feed-0500,feed-0999,feed-0000"
        assert await tab.js("document.querySelector('#summary').textContent") == "1,000 pipelines, 2 need somebody"
        await picture(tab, "list")
        # The filter is in the address, and so is the way back
        await tab.js("document.querySelector('#f-attention').value = 'yes', document.querySelector('#f-go').click()")
        shown = "document.querySelectorAll('a[id^=p-]').length"
        await tab.until(f"location.hash.includes('attention=yes') && {shown} === 2")
        await tab.js("history.back()")
        await tab.until(f"{shown} === 50")
        await tab.js("location.hash = '#/?q=0003'")
        await tab.until(f"{shown} === 1")
        label = await tab.js("document.querySelector('.spark').getAttribute('aria-label')")
        assert label.endswith("records in the last two hours")
        await tab.size(400, 900)
        assert await tab.js("document.documentElement.scrollWidth <= 400"), "the table scrolls by itself"
        await picture(tab, "list-narrow")
        assert tab.errors == []
