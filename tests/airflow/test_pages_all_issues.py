"""The page of the issues of all pipelines, in a real Chromium: of a thousand, filtered, by the keyboard, narrow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from conduit_tasks.airflow.api import issues as api
from conduit_tasks.dead_letters import columns, extract
from conduit_tasks.operate import all_issues
from conduit_tasks.operate.issues import note_failure
from tests.airflow.api_client import PIPELINE, Airflow, airflow, broker_of, site
from tests.airflow.test_pages import picture
from tests.browser import tab_of
from tests.micro_batch.harness import write_pipeline
from tests.operate.test_all_issues import dead, letter

__all__ = ["airflow", "site"]

pytestmark = pytest.mark.timeout(900)
IDS = [f"feed-{n:04d}" for n in range(1_000)]
LETTERS = IDS[901:941]
"""Those with dead letters, where there are some."""


@pytest.fixture
def pipelines(home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str]], None]:
    """Writes pipelines of these ids, which whoever asks may see."""

    def write(ids: Iterable[str]) -> None:
        text = PIPELINE.replace("URL", "http://localhost:1/")
        one = text[text.index("  - id: p") :]
        each = (one.replace("id: p\n", f"id: {id}\n") for id in ids)
        write_pipeline(home, "many", f'version: "2.2"\npipelines:\n{"".join(each)}')
        monkeypatch.setattr(type(airflow), "get_authorized_dag_ids", lambda *_, **__: set(ids))

    return write


@pytest.fixture
def failing(pipelines: Callable[[Iterable[str]], None], airflow: Airflow) -> None:
    """Of each tenth of a thousand pipelines a task has failed, and feed-0500 has failed most; there are these, and
    those that may have letters."""
    pipelines(sorted({*IDS[::10], *LETTERS}))
    airflow.without_logs = ("feed-0010",)
    for id in IDS[::10]:
        for attempt in range(3 if id == "feed-0500" else 1):
            node, error_class, error = "sources.in", "SourceError", f"{id}: in <b>x</b> is gone"
            if int(id[-4:]) % 30 == 10:
                node, error_class, error = "destinations.web", "Unavailable", "HTTP 503 from https://example.org/orders"
            log = {"dag": id, "run": "r", "task": node, "map_index": -1, "try": 1 + attempt}
            note_failure(broker_of(id), node, node, error_class, error, str(attempt), log)


@pytest.mark.slow
def test_the_issues_of_a_thousand_pipelines_are_a_click_away(
    site: str, browser: str, failing: None, pipelines: Callable[[Iterable[str]], None]
) -> None:
    pipelines(IDS)
    asyncio.run(_look(site, browser))


@pytest.mark.slow
def test_issues_of_dead_letters_come_as_they_are_found(
    site: str, browser: str, failing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 40 pipelines with dead letters, as after a restart, of which an answer looks at two
    columns._kept.clear()
    monkeypatch.setattr(api, "WITHIN", 0.0)
    monkeypatch.setattr(all_issues, "LEAST", 2)
    for id in LETTERS:
        dead(id, letter(id, 1))
    asyncio.run(_come(site, browser))


async def _come(site: str, browser: str) -> None:
    rows = "document.querySelectorAll('a[id^=i-]').length"
    missing = "[...document.querySelectorAll('.missing')].map((p) => p.textContent).join()"
    summary = "document.querySelector('#summary').textContent"
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#//issues?state=open&kind=dead+letters")
        await tab.until(f"{missing}.includes('more pipelines are being looked through')")
        some = await tab.js(f"[{rows}, {summary}, {missing}]")
        assert 0 < some[0] < 40
        assert some[1].endswith(" so far")
        left = 40 - some[0]
        assert f"The dead letters of {left} more pipeline" in some[2]
        await picture(tab, "all-issues-coming")
        # Then they come one after the other, without anybody asking, and soon
        await tab.until(f"{rows} === 40 && !{missing}.includes('looked through')")
        assert await tab.js(summary) == "139 open issues in 135 pipelines"
        waits = await tab.js(
            "performance.getEntriesByType('resource').filter((e) => e.name.includes('/v1/issues'))"
            ".map((e, n, all) => n ? e.startTime - all[n - 1].responseEnd : 0)"
        )
        assert len(waits) >= 20
        assert sorted(waits)[len(waits) // 2] < 2_000, "the page asks each three seconds if nothing is left"
        assert tab.errors == []


@pytest.mark.slow
def test_letters_of_an_earlier_version_come_as_they_are_read(
    site: str, browser: str, pipelines: Callable[[Iterable[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 30 files of one pipeline without an extract, of which an answer reads three
    pipelines(IDS[950:951])
    columns._kept.clear()
    for door in ("dead_letters", "issues"):
        monkeypatch.setattr(f"conduit_tasks.airflow.api.{door}.WITHIN", 0.0)
    monkeypatch.setattr(columns, "LEAST", 3)
    monkeypatch.setattr(extract, "_COLUMNS", b"another.")
    for n in range(30):
        dead(IDS[950], letter(IDS[950], n + 1))
    asyncio.run(_read(site, browser))


async def _read(site: str, browser: str) -> None:
    missing = "(document.querySelector('.missing')?.textContent ?? '')"
    rows = "document.querySelectorAll('tbody tr').length"
    async with tab_of(browser, "none", site) as tab:
        for page, whole in (("dead-letters", f"{rows} === 30"), ("issues", "document.querySelector('article.issue')")):
            columns._kept.clear()
            await tab.call("Page.navigate", url="about:blank")
            await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/{IDS[950]}/{page}")
            # Then the page says that something is missing, and goes on without anybody asking
            await tab.until(f"{missing}.includes('of dead letters are being read')")
            if page == "dead-letters":
                assert await tab.js(rows) < 30
            await tab.until(f"({whole}) && !{missing}")
        assert tab.errors == []


async def _look(site: str, browser: str) -> None:
    rows = "document.querySelectorAll('a[id^=i-]').length"
    first = "document.querySelector('a[id^=i-]').closest('tr').innerText"
    async with tab_of(browser, "none", site) as tab:
        # From the list, by the keyboard
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/")
        await tab.until("document.querySelector('a[id^=p-]') && document.querySelector('#v-issues')")
        assert await tab.js("document.querySelector('#v-pipelines').getAttribute('aria-current')") == "page"
        await tab.js("document.querySelector('#v-issues').focus()")
        await tab.key("Enter", 13, "\r")
        await tab.until(f"location.hash === '#//issues?state=open' && {rows} === 50")
        assert await tab.js("document.title") == "Issues · Conduit"
        assert await tab.js("document.querySelector('#v-issues').getAttribute('aria-current')") == "page"
        assert await tab.js("document.querySelector('#summary').textContent") == "99 open issues in 99 pipelines"
        said = await tab.js("document.querySelector('.missing').textContent")
        assert said == "1 more pipeline with failures: you may not read the logs of its tasks."
        orders = "[...document.querySelectorAll('#f-order option')].map((one) => one.textContent).join()"
        assert await tab.js(orders) == "newest,most"
        shown = await tab.js(first)
        for text in ("feed-0990", "sources.in: SourceError", "open", "feed-0990: in <b>x</b> is gone"):
            assert text in shown
        await tab.size(1280, 640)
        await tab.picture("all-issues")
        await picture(tab, "all-issues")
        # Pages and filters are in the address, and so is the way back
        await tab.js("document.querySelector('#older').click()")
        await tab.until(f"location.hash === '#//issues?state=open&offset=50' && {rows} === 49")
        await tab.js("document.querySelector('#f-order').value = 'most', document.querySelector('#f-go').click()")
        await tab.until(f"location.hash === '#//issues?state=open&order=most' && {first}.includes('feed-0500')")
        await tab.js("document.querySelector('#f-q').value = '0990', document.querySelector('#f-q').focus()")
        await tab.key("Enter", 13, "\r")
        await tab.until(f"{rows} === 1 && location.hash.includes('q=0990')")
        await tab.js("history.back()")
        await tab.until(f"{rows} === 50")
        await tab.js("location.hash = '#//issues?kind=dead+letters'")
        await tab.until("document.querySelector('#page').innerText.includes('None with this filter')")
        # A click leads to the one issue, where it is decided about, and from there to all of its pipeline
        await tab.js("location.hash = '#//issues?state=open'")
        await tab.until(f"{rows} === 50")
        await tab.js("document.querySelector('a[id^=i-]').click()")
        await tab.until(
            "location.hash.startsWith('#/feed-0990/issues?issue=') && document.querySelector('.issue.open')"
        )
        await tab.js("document.querySelector('[id^=acknowledged-]').click()")
        await tab.until("document.querySelector('.issue.acknowledged')")
        await tab.js("document.querySelector('#all-of-it').click()")
        await tab.until("location.hash === '#/feed-0990/issues' && !document.querySelector('#all-of-it')")
        await tab.js("location.hash = '#/feed-0990/issues?issue=0123456789ab'")
        await tab.until("document.querySelector('#page').innerText.includes('It is gone')")
        # Then it is open no more
        await tab.js("location.hash = '#//issues?state=open'")
        await tab.until("document.querySelector('#summary').textContent === '98 open issues in 98 pipelines'")
        # And a narrow window scrolls the table alone
        await tab.size(400, 900)
        assert await tab.js("document.documentElement.scrollWidth <= 400")
        await picture(tab, "all-issues-narrow")
        # What no view is called is said
        await tab.js("location.hash = '#//nowhere'")
        await tab.until("document.querySelector('#problem').textContent.includes('There is no page nowhere')")
        assert tab.errors == []
