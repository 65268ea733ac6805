"""Every view of the pages by axe-core, in a real Chromium: light, dark, and 400 pixels wide."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from tests.airflow.api_client import Airflow, airflow, broker_of, delivered
from tests.airflow.test_api_records import QUIET
from tests.airflow.test_live_page import pipeline
from tests.airflow.test_pages import history, sample, site
from tests.browser import Tab, tab_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "delivered", "pipeline", "sample", "site"]

pytestmark = pytest.mark.timeout(900)
AXE = Path(__file__).parents[2] / "scripts" / "js" / "node_modules" / "axe-core" / "axe.min.js"
LOOK = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .flatMap((one) => one.nodes.map((node) =>
    `${one.id} (${one.impact}): ${node.html} ${node.failureSummary}`.slice(0, 600))))
"""
VIEWS = {
    "#/": "document.querySelector('a[id^=p-]') && document.querySelector('#summary')",
    "#//issues?state=open": "document.querySelector('a[id^=i-p-]') && document.querySelector('.missing')",
    "#/p": "document.querySelectorAll('.chart .u-legend').length === 6",
    "#/p?range=900": "['topology', 'lag'].every((id) => { const one = document.querySelector(`#t-${id}`);"
    "if (one) one.open = true; return one?.querySelector('tbody td'); })",
    "#/p/micro-batches": "document.querySelector('tbody td.number')",
    "#/p/issues": "document.querySelectorAll('article.issue').length === 2",
    "#/p/dead-letters": "document.querySelector('tbody a')",
    "#/p/dead-letter/LETTER": "document.querySelector('#try-it')",
    "#/p/records?node=destinations.web": "document.querySelector('article.step')",
    "#/p/records?node=destinations.web&last=2": "[...document.querySelectorAll('details.fold')]"
    ".map((one) => { one.open = true; }).length === 2 && document.querySelector('details.fold .diff .come')",
    "#/p/records?node=processors/stamp": "document.querySelectorAll('.brief ~ article.step .diff').length > 5",
    "#/p/records?node=destinations.web/stamp": "document.querySelectorAll('.brief ~ article.step .diff').length > 5",
    "#/p/records?node=sources.in": "document.querySelector('article.step')",
    "#/p/try?letter=LETTER": "document.querySelector('article.step') || document.querySelector('#try')?.click()",
    "#/p/replay": "document.querySelector('#replay')",
    "#/p/record": "document.querySelector('#f-by')",
    "#/p/record?by=.Key&value=3": "document.querySelector('tbody a')",
    "#/p/record/RECORD": "document.querySelector('.waterfall')",
    "#/p/nowhere": "!document.querySelector('#problem').hidden",
}
"""Address of a view → what is there once it is drawn."""


@pytest.mark.slow
def test_no_view_has_a_serious_violation(
    site: str,
    browser: str,
    pipeline: Broker,
    sample: Any,
    home: Path,
    airflow: Airflow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from conduit_tasks.airflow.api import replays
    from conduit_tasks.operate.issues import note_failure

    # Airflow's database is asked for these
    run = {"dag_id": "p.resend", "run_id": "r", "state": "success", "interval": ("a", "b"), "conf": {}, "results": {}}
    monkeypatch.setattr(replays, "results", lambda *_: [run])
    assert AXE.exists(), "axe-core is missing: run scripts/js.sh"
    history(sample)
    log = {"dag": "p", "run": "r", "task": "sources.in", "map_index": -1, "try": 1}
    for id in ("p", "p1"):
        note_failure(broker_of(id), "sources.in", "sources.in", "SourceError", "in.txt is gone", "1", log)
    write_pipeline(home, "p1", QUIET.replace("id: p\n", "id: p1\n"))
    airflow.without_logs = ("p1",)
    asyncio.run(_views(site, browser))


async def _views(site: str, browser: str) -> None:
    found: list[str] = []
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        await tab.until("document.querySelector('.chart')")
        letters = "fetch('/conduit/v1/pipelines/p/dead-letters').then((a) => a.json()).then((a) => a.items[0])"
        one = await tab.js(letters)
        letter = "/".join(str(one[name]) for name in ("destination", "epoch", "micro_batch", "seq", "ord"))
        # One that is wrong is found, or nothing would be
        await tab.js(AXE.read_text())
        await tab.js("document.querySelector('#said').innerHTML = '<button></button><img src=icon.svg>'")
        assert {said.partition(" ")[0] for said in await tab.js(LOOK)} >= {"button-name", "image-alt"}
        await tab.js("document.querySelector('#said').replaceChildren()")
        await tab.js(
            "new MutationObserver(() => { window.drawn += 1; })"
            ".observe(document.querySelector('#page'), {childList: true})"
        )
        for view, there in VIEWS.items():
            address = view.replace("LETTER", letter).replace("RECORD", one["id"])
            await tab.size(1280, 1200)
            await tab.js(f"window.drawn = 0; location.hash = {json.dumps(address)}")
            await tab.until(f"window.drawn && ({there})", 120)
            for theme in ("light", "dark"):
                found += [f"{address}, {theme}: {said}" for said in await _look(tab, theme)]
            # And in a window that somebody makes narrow; tests/airflow/test_pages_large.py draws in one that is
            await tab.size(400, 1200)
            await tab.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            await tab.until("document.documentElement.scrollWidth <= 400", 60)
            found += [f"{address}, dark, narrow: {said}" for said in await _look(tab, "dark")]
        assert found == []
        await _scrolls(tab)
        assert tab.errors == []


async def _scrolls(tab: Tab) -> None:
    """A table that is wider than the window is scrolled by the keyboard, also while the page is drawn again."""
    await tab.js("location.hash = '#/p/micro-batches'")
    await tab.until("document.querySelector('.scroll td.number')")
    await tab.js("document.querySelector('.scroll').focus(), window.drawn = 0")
    await tab.key("ArrowRight", 39)
    await tab.until("document.querySelector('.scroll').scrollLeft > 0")
    await tab.until("window.drawn && document.activeElement.className === 'scroll'")
    assert await tab.js("document.querySelector('.scroll').scrollLeft > 0")


async def _look(tab: Tab, theme: str) -> list[str]:
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    await tab.until(f"document.documentElement.classList.contains('dark') === {json.dumps(theme == 'dark')}")
    said: list[str] | None = await tab.js(LOOK)
    assert said is not None, "axe could not look"
    return said
