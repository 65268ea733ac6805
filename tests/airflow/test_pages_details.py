"""What is on the pages besides their figures: wrong addresses and inputs, titles, what is folded, what is cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.airflow.api_client import airflow, delivered
from tests.airflow.test_pages import history, picture, sample, site
from tests.browser import tab_of

__all__ = ["airflow", "delivered", "sample", "site"]

pytestmark = pytest.mark.timeout(900)
PROBLEM = "document.querySelector('#problem').textContent"
PAGE = "document.querySelector('#page').innerText"


@pytest.mark.slow
def test_what_is_wrong_in_an_address_or_a_form_is_said_in_plain_words(
    site: str, browser: str, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import replays

    # Airflow's database is asked for these
    monkeypatch.setattr(replays, "results", lambda *_: [])
    asyncio.run(_wrong(site, browser))


async def _wrong(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/micro-batches")
        await tab.until("document.querySelector('tbody td.number')")
        assert await tab.js("document.title") == "p · Micro-batches · Conduit"
        # An address that is cut in the middle of a letter
        await tab.js("location.hash = '#/orders/%E0%A4%A'")
        await tab.until(f"{PROBLEM}.includes('%E0%A4%A')")
        assert await tab.js(PAGE) == "All pipelines"
        # A record id that is none: the form stays, nothing is asked again, and so for one that nobody knows
        for id, said in (("xyz", "is no record id"), ("00" * 16, "no record 00")):
            await tab.js(f"location.hash = '#/p/record/{id}'")
            await tab.until(f"document.querySelector('#not-found')?.textContent.includes('{said}')")
            assert await tab.js("document.querySelector('#f-value').value") == id
            assert await tab.js("document.querySelector('#v-record').ariaCurrent") == "page"
            assert "pattern" not in await tab.js(PAGE)
            assert await tab.js("document.querySelector('#problem').hidden")
            before = len(tab.requests)
            await asyncio.sleep(4)
            await tab.js("1")
            assert tab.requests[before:] == []
        assert await tab.js("document.title") == "p · A record · Conduit"
        # A page beyond the end is the last one
        for view, there in (
            ("micro-batches", "1–2 of 2"),
            ("issues", "1–1 of 1"),
            ("dead-letters", "1–1 of 1"),
        ):
            await tab.js(f"location.hash = '#/p/{view}?offset=100000'")
            await tab.until(f"{PAGE}.includes('{there}') && !location.hash.includes('offset')")
        # A date that is none is named by its field
        await tab.js("location.hash = '#/p/replay'")
        await tab.until("document.querySelector('#f-to')")
        await tab.js(
            "[['from', '2013-03-01'], ['to', 'soon']].forEach(([name, value]) => {"
            "const field = document.querySelector(`#f-${name}`); field.value = value;"
            "field.dispatchEvent(new Event('input', {bubbles: true})); }), document.querySelector('#would').click()"
        )
        await tab.until(
            "document.querySelector('#said').textContent.includes(\"the end (to) of the interval, 'soon'\")"
        )
        assert all("404" in error or "409" in error or "400" in error for error in tab.errors), tab.errors


@pytest.mark.slow
def test_the_chart_of_all_pipelines_does_what_it_says_and_keeps_its_zoom(
    site: str, browser: str, delivered: None, sample: Any
) -> None:
    history(sample)
    asyncio.run(_over(site, browser))


async def _over(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 900)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/")
        await tab.until("document.querySelector('#c-all canvas')")
        assert await tab.js("document.title") == "Pipelines · Conduit"
        assert "Enter" not in await tab.js("document.querySelector('#c-all').ariaLabel")
        await tab.js("document.querySelector('#c-all').focus()")
        for _ in range(3):
            await tab.key("ArrowLeft", 37)
        await tab.key("+", 187, "+")
        await tab.until("!document.querySelector('#zoom-all').disabled")
        await tab.js("document.querySelector('#t-all summary').click()")
        rows = "document.querySelectorAll('#t-all tbody tr').length"
        await tab.until(f"{rows} > 2 && {rows} < 20")
        await tab.js(
            "window.drawn = 0, new MutationObserver(() => { window.drawn += 1; })"
            ".observe(document.querySelector('#page'), {childList: true})"
        )
        await tab.until("window.drawn >= 2")
        assert await tab.js(f"{rows} < 20 && !document.querySelector('#zoom-all').disabled")
        await picture(tab, "over")
        await tab.js("document.querySelector('#zoom-all').click()")
        await tab.until(f"{rows} >= 20 && document.querySelector('#zoom-all').disabled")
        assert tab.errors == []


COLORS = """
(() => {
  const canvas = document.querySelector('#c-outcomes canvas'), style = getComputedStyle(document.documentElement);
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return ['--s1', '--s2', '--s3'].map((name) => {
    const hex = style.getPropertyValue(name).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    let n = 0;
    for (let i = 0; i < data.length; i += 4) n += data[i] === r && data[i + 1] === g && data[i + 2] === b;
    return n;
  });
})()
"""


@pytest.mark.slow
def test_nothing_is_cut_or_hidden_that_people_look_for(site: str, browser: str, delivered: None, sample: Any) -> None:
    history(sample)
    asyncio.run(_details(site, browser))


async def _details(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 900)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until("document.querySelectorAll('.chart .u-legend').length === 6")
        # A few dead letters among thousands that were delivered
        await tab.until(f"{COLORS}[0] > 1000")
        assert (await tab.js(COLORS))[1] > 100
        # The heads of the tables, and whether a lease is held
        cut = (
            "[...document.querySelectorAll('.live')].flatMap((one) => [...one.querySelectorAll('thead th, td')])"
            ".filter((cell) => cell.offsetWidth && cell.scrollWidth > cell.clientWidth && !cell.title.includes('{'))"
            ".map((cell) => cell.textContent)"
        )
        await tab.js("document.querySelector('#t-topology summary').click()")
        await tab.until("document.querySelector('#t-topology tbody td')?.textContent")
        assert await tab.js(cut) == []
        await tab.js("document.querySelector('#c-lag').focus()")
        await picture(tab, "details")
        # The records of a stage are one line each
        await tab.js("location.hash = '#/p/records?node=destinations.web'")
        await tab.until("document.querySelectorAll('article.step details').length === 10")
        assert await tab.js("document.documentElement.scrollHeight") < 2_500
        assert (
            json.loads((await tab.js("document.querySelector('#r-0 summary').textContent")).partition(" · ")[2])["n"]
            == 9
        )
        await picture(tab, "records-folded")
        # A run is a link
        letters = "fetch('/conduit/v1/pipelines/p/dead-letters').then((a) => a.json()).then((a) => a.items[0].id)"
        await tab.js(f"{letters}.then((id) => {{ location.hash = `#/p/record/${{id}}`; }})")
        await tab.until("document.querySelector('.waterfall')")
        links = "[...document.querySelectorAll('.waterfall a')].map((a) => a.getAttribute('href'))"
        assert "/dags/p/runs/first" in await tab.js(links)
        await picture(tab, "way-links")
        # No word of the navigation is broken where there is little room
        await tab.size(400, 900)
        whole = "(a) => a.getClientRects().length === 1 && a.offsetHeight < 34"
        await tab.until(f"[...document.querySelectorAll('nav a')].every({whole})")
        await picture(tab, "narrow")
        assert tab.errors == []
