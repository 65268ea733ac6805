"""The page of issues, in a real Chromium: decided about by the keyboard, sent again, their records and logs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.settings import settings
from tests.airflow.api_client import airflow, broker_of, delivered, site
from tests.airflow.test_pages import picture
from tests.browser import Tab, tab_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "delivered", "site"]

pytestmark = pytest.mark.timeout(900)
ISSUES = "fetch('/conduit/v1/pipelines/p/issues').then((a) => a.json())"
LETTERS = "fetch('/conduit/v1/pipelines/p/dead-letters').then((a) => a.json())"


@pytest.mark.slow
def test_an_issue_is_acknowledged_and_opened_again_by_the_keyboard_and_its_record_is_tried(
    site: str, browser: str, delivered: None, home: Path
) -> None:
    # Given a file that has changed since: what the web gets is stamped
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    stamp = "processors: [{id: stamp, plugin: field.set, settings: {field: .Payload.After.stamp, value: '1'}}]"
    write_pipeline(home, "p", text.replace("delivery: {timeout: 20s}", f"delivery: {{timeout: 20s}}\n        {stamp}"))
    asyncio.run(_issues(site, browser))


async def _issues(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/issues")
        await tab.until("document.querySelector('.issue.open')")
        shown = await tab.js("document.querySelector('.issue').innerText")
        assert "destinations.web: http 400" in shown
        assert "1 dead letter" in shown
        await picture(tab, "issues")
        for word, state in (("acknowledged", "acknowledged"), ("open", "open"), ("muted", "muted"), ("open", "open")):
            await tab.js(f"document.querySelector('[id^={word}-]').focus()")
            await tab.key("Enter", 13, "\r")
            await tab.until(f"document.querySelector('.issue.{state}')")
        await _muted(tab)
        # All of it would go again
        await tab.js("document.querySelector('[id^=would-]').focus()")
        await tab.key("Enter", 13, "\r")
        said = "document.getElementById('said').textContent"
        await tab.until(f"{said}.includes('Would be sent again: web: 1 dead letter.')")
        # And its letters are a click away
        await tab.js("document.querySelector('.issue a').click()")
        await tab.until("location.hash.includes('issue=') && document.querySelector('tbody tr')")
        await tab.size(400, 900)
        assert await tab.js("document.documentElement.scrollWidth <= 400")
        await _records(site, tab)
        await _tries(site, tab)
        await _ways(site, tab)
        assert tab.errors == []


async def _muted(tab: Tab) -> None:
    # What it was seen on is a bar for the eye, and text for those who do not see it
    (issue,) = (await tab.js(ISSUES))["items"]
    (day,) = issue["days"]
    assert await tab.js("document.querySelectorAll('.issue .spark rect').length") == 1
    assert f"{day}: 1" in await tab.js("document.querySelector('.issue .spark').getAttribute('aria-label')")
    # A mute lasts as long as is chosen, and says until when
    for n, seconds in enumerate((3_600, 86_400, 604_800, None)):
        await tab.js(
            f"(() => {{ const s = document.querySelector('.issue select'); s.selectedIndex = {n}; "
            "s.dispatchEvent(new Event('change')); document.querySelector('[id^=muted-]').click(); })()"
        )
        await tab.until("document.querySelector('.issue.muted')")
        (issue,) = (await tab.js(ISSUES))["items"]
        until, shown = issue["decision"]["until"], await tab.js("document.querySelector('.issue').innerText")
        if seconds is None:
            assert until is None
            assert "muted by ann until opened again" in shown
        else:
            assert abs(until - issue["decision"]["at"] - seconds) < 120
            assert f"muted by ann until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC" in shown
        await tab.js("document.querySelector('[id^=open-]').click()")
        await tab.until("document.querySelector('.issue.open')")


@pytest.mark.slow
def test_what_is_sent_again_says_how_much_of_it_is_left(
    site: str, browser: str, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import dead_letters

    monkeypatch.setattr(dead_letters, "start", lambda *_: None)
    asyncio.run(_sent(site, browser))


async def _sent(site: str, browser: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/issues")
        await tab.until("document.querySelector('.issue.open')")
        await tab.js("window.confirm = () => true; document.querySelector('[id^=redrive-]').click()")
        sent = "document.querySelector('#sent')?.textContent"
        await tab.until(f"{sent} === 'Being sent again: 0 of 1 dead letter closed, 1 left.'")
        assert "/dags/p.resend/runs/redrive__" in await tab.js("document.querySelector('#sending a').href")
        # The run closes it: then the page says so, on the list of letters, too
        letter = (await tab.js(LETTERS))["items"][0]
        key = (letter["epoch"], letter["micro_batch"], letter["seq"], letter["ord"])
        Marks(settings().path(settings().dead_letters), "p").write("web", [Settled(key, "redriven", 1, 1.0, "ann")])
        await tab.until(f"{sent} === 'Sent again: 1 of 1 dead letter closed, 0 left.'")
        await tab.js("location.hash = '#/p/dead-letters'")
        await tab.until("document.querySelector('#page').innerText.includes('Nothing is dead')")
        assert await tab.js("document.querySelector('#sending progress').value") == 1
        await tab.js("document.querySelector('#hide-sending').click()")
        assert await tab.js("document.querySelector('#sending')") is None
        assert tab.errors == []


@pytest.mark.slow
def test_an_issue_of_a_task_leads_to_its_log_and_says_when_the_task_succeeded(
    site: str, browser: str, delivered: None
) -> None:
    from conduit_tasks.operate.issues import note_failure

    broker = broker_of("p")
    log = {"dag": "p", "run": "manual__1+2", "task": "sources.in", "map_index": -1, "try": 2}
    for attempt in ("1", "2"):
        said = "data/a.jsonl was shortened: put it back, or give the new one another name"
        note_failure(broker, "sources.in", "sources.in", "SourceError", said, attempt, log)
    (id,) = broker.issues.failing()
    asyncio.run(_task_issue(site, browser, f"#i-{id}"))


async def _task_issue(site: str, browser: str, issue: str) -> None:
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 640)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/issues")
        await tab.until("document.querySelectorAll('.issue.open').length === 2")
        await tab.picture("issues")
        shown = await tab.js(f"document.querySelector('{issue}').innerText")
        for said in ("sources.in: SourceError", "2 failed attempts", "put it back, or give"):
            assert said in shown
        assert await tab.js(f"document.querySelector('{issue} a').getAttribute('href')") == (
            "/dags/p/runs/manual__1%2B2/tasks/sources.in?try_number=2"
        )
        # And to the runs that were under way while it was seen
        first, last = (
            broker_of("p").issues.failing()[issue.removeprefix("#i-")].__dict__[n] for n in ("first", "last")
        )
        runs = await tab.js(f"document.querySelector('#then-{issue.removeprefix('#i-')}-runs').href")
        then = {name: datetime.fromisoformat(said) for name, [said] in parse_qs(urlsplit(runs).query).items()}
        assert urlsplit(runs).path == "/dags/p/runs"
        assert abs(then["end_date_gte"].timestamp() - first) < 0.01
        assert abs(then["start_date_lte"].timestamp() - last - 1) < 0.01
        buttons = f"[...document.querySelectorAll('{issue} button')].map((one) => one.textContent).join()"
        assert await tab.js(buttons) == "Acknowledge,Mute,Resolve", "there is nothing to send again"
        broker_of("p").issues.succeeded("sources.in")
        await tab.until(f"document.querySelector('{issue}.resolved')")
        assert "succeeded since" in await tab.js(f"document.querySelector('{issue}').innerText")
        assert await tab.js(buttons) == "Acknowledge,Mute"
        await tab.js(f"document.querySelector('{issue} [id^=acknowledged-]').click()")
        await tab.until(f"document.querySelector('{issue}.acknowledged')")
        assert await tab.js(buttons) == "Open again"
        assert tab.errors == []


async def _records(site: str, tab: Tab) -> None:
    # The last records of a stage, with the answers of its target
    await tab.size(1280, 900)
    await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/records")
    await tab.until("document.querySelectorAll('article.step').length === 10")
    await tab.js("document.getElementById('s-destinations.web').click()")
    await tab.until("document.querySelectorAll('article.open').length === 1")
    refused = await tab.js("document.querySelector('article.open').innerText")
    assert "nacked" in refused
    assert "http 400" in refused
    await tab.js("document.querySelector('#r-0 summary').click()")
    assert "stamp" in await tab.js("document.querySelector('#r-0 .diff .come').closest('tbody').innerText")
    await picture(tab, "records")
    # Of one processor, before and after it, without opening anything
    await tab.js("document.querySelector('[id=\"s-destinations.web/stamp\"]').click()")
    await tab.until(
        "location.hash.includes('web%2Fstamp') && document.querySelector('#r-0 .brief ~ article.step .diff .come')"
    )
    assert "stamp" in await tab.js("document.querySelector('#r-0 .diff').innerText")
    gone = await tab.js("document.querySelectorAll('#r-0 .diff .gone').length")
    assert gone == 0, "what stands before it has another comma alone"
    assert "runs again here" in await tab.js("document.querySelector('.stage').textContent")
    assert await tab.js("document.querySelectorAll('details.fold').length") == 0
    assert "nacked" in await tab.js("document.querySelector('#page').innerText")
    await tab.size(1280, 640)
    await tab.picture("records")
    await picture(tab, "records-processor")
    await tab.size(400, 900)
    assert await tab.js("document.documentElement.scrollWidth <= 400")
    await tab.size(1280, 900)
    await tab.js("document.querySelector('[id=\"s-sources.in\"]').click()")
    await tab.until("document.querySelector('.stage')?.textContent === 'Shown as it was read.'")
    await tab.js("document.querySelector('[id=\"s-destinations.web\"]').click()")
    await tab.until("document.querySelector('[id=\"s-destinations.web\"][aria-current]')")
    # One of them is tried with a click
    await tab.js("document.querySelector('#r-0 a').click()")
    await tab.until("location.hash.includes('place=destinations.web') && document.querySelector('#try')")
    assert await tab.js("document.querySelector('#f-pick').value") == "place"


async def _ways(site: str, tab: Tab) -> None:
    # A record is found by its key, with the keyboard alone
    await tab.size(1280, 900)
    await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/record")
    await tab.until("document.querySelectorAll('#f-by option').length === 2")
    key = await tab.js(
        f"fetch('{site}/conduit/v1/pipelines/p/dead-letters').then((a) => a.json()).then((a) => a.items[0].key)"
    )
    await tab.js(
        f"document.querySelector('#f-by').value = '.Key', document.querySelector('#f-value').value = {json.dumps(key)}"
    )
    await tab.js("document.querySelector('#f-value').focus()")
    await tab.key("Enter", 13, "\r")
    await tab.until("location.hash.includes('by=.Key') && document.querySelector('tbody a')")
    assert await tab.js("document.querySelector('#f-value').value") == key
    # Its way is a table with a bar for each step, on one scale
    await tab.js("[...document.querySelectorAll('tbody a')].pop().click()")
    await tab.until("document.querySelector('.waterfall')")
    rows = await tab.js("[...document.querySelectorAll('.waterfall tbody tr')].map((row) => row.innerText).join('|')")
    for said in ("sources.in", "sealed", "destinations.file", "destinations.web", "nacked", "http 400", "acked"):
        assert said in rows
    starts = "[...document.querySelectorAll('.waterfall rect')].map((bar) => +bar.getAttribute('x'))"
    found = await tab.js(starts)
    assert len(found) >= 5
    assert found[0] == 0
    assert all(0 <= x < 1_000 for x in found)
    assert await tab.js("document.querySelectorAll('.way.bad rect').length") >= 1
    assert "nacked as a whole" in await tab.js("document.querySelector('section.place h3').innerText")
    assert await tab.js("document.querySelector('.waterfall').closest('.scroll').tabIndex") == 0
    await picture(tab, "way")
    await tab.picture("way")
    await tab.size(400, 900)
    assert await tab.js("document.documentElement.scrollWidth <= 400")


async def _tries(site: str, tab: Tab) -> None:
    said = "document.getElementById('said').textContent"
    steps = "[...document.querySelectorAll('article.step')].map((a) => a.querySelector('.head').innerText).join('|')"
    # A dead letter is tried from its page
    await tab.js("location.hash = '#/p/dead-letters'")
    await tab.until("document.querySelector('tbody a')")
    await tab.js("document.querySelector('tbody a').click()")
    await tab.until("document.querySelector('#try-it')")
    await tab.js("document.querySelector('#try-it').click()")
    await tab.until("document.querySelector('#f-pick')?.value.startsWith('web/0/')")
    assert await tab.js("document.querySelector('#f-record').disabled")
    await tab.js("document.querySelector('#try').focus()")
    await tab.key("Enter", 13, "\r")
    await tab.until(f"{said} === 'No step fails.'")
    assert "sent" in await tab.js(steps)
    # A record is pasted, and the file changed: what differs stands side by side, what is wrong is marked
    await tab.js("location.hash = '#/p/try'")
    await tab.until("document.querySelector('#f-pick')?.value === '' && document.querySelector('#f-file')")
    more = (
        "    processors:\n"
        "      - {id: set, plugin: field.set, settings: {field: .Payload.After.way, value: '{{ .Payload.After.n }}'}}\n"
        "      - {id: bad, plugin: filter, condition: '{{ eq .Payload.After.n.x 1 }}'}\n"
    )
    text = await tab.js("document.querySelector('#f-file').value")
    assert "id: web" in text
    assert "hush" not in text
    await tab.js(f"document.querySelector('#f-file').value += {json.dumps(more)}")
    record = json.dumps({"payload": {"after": {"n": 7, "token": "t0ken-here"}}})
    await tab.js(f"document.querySelector('#f-record').value = {json.dumps(record)}")
    await tab.js("document.querySelector('#f-record').dispatchEvent(new Event('input', {bubbles: true}))")
    await tab.js("document.querySelector('#try').click()")
    await tab.until(f"{said} === 'A step fails.'")
    assert "way" in await tab.js("[...document.querySelectorAll('.diff .come')].map((cell) => cell.innerText).join()")
    assert await tab.js("document.querySelector('mark').textContent") == "{{ eq .Payload.After.n.x 1 }}"
    assert "t0ken" not in await tab.js("document.querySelector('#steps').innerText")
    # And a click leads to its place in the text
    await tab.js("document.querySelector('.place').click()")
    chosen = (
        "document.activeElement.value.slice(document.activeElement.selectionStart, document.activeElement.selectionEnd)"
    )
    assert "eq .Payload.After.n.x 1" in await tab.js(chosen)
    await tab.js("document.activeElement.blur()")
    for look in ("light", "dark"):
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": look}])
        await tab.until(f"document.documentElement.classList.contains('dark') === {str(look == 'dark').lower()}")
        await picture(tab, f"try-{look}")
        if look == "dark":
            await tab.size(1280, 1150)
            await tab.picture("try")
    # What is typed stays while others are looked at, and nothing is wider than the window
    await tab.js("location.hash = '#/p'")
    await tab.until("document.querySelector('.charts, .chart')")
    await tab.js("history.back()")
    await tab.until("document.querySelector('#f-file')?.value.includes('id: bad')")
    await tab.size(400, 900)
    assert await tab.js("document.documentElement.scrollWidth <= 400")
    # A text that is no pipeline file, and a record that is none, are said
    await tab.js("document.querySelector('#f-file').value = 'a: [', document.querySelector('#try').click()")
    await tab.until("document.querySelector('#try-error')?.textContent.includes('E002')")
    await tab.js("document.querySelector('#f-back').click(), document.querySelector('#f-record').value = 'x'")
    await tab.js("document.querySelector('#try').click()")
    await tab.until("document.querySelector('#try-error')?.textContent.includes('the record is no JSON')")
