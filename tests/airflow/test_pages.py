"""The pages by themselves, in a real Chromium: charts, the list of many pipelines, a narrow window, the keyboard.

`tests/stack/test_pages.py` looks at them within the real Airflow.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conduit_tasks.broker import scripts
from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.redis_client.script import Script, load
from conduit_tasks.settings import settings
from tests.airflow.api_client import PIPELINE, Airflow, airflow, broker_of, delivered, receivers, site
from tests.browser import Tab, browser, tab_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "browser", "delivered", "receivers", "site"]

pytestmark = pytest.mark.timeout(900)
ISSUES = "fetch('/conduit/v1/pipelines/p/issues').then((a) => a.json())"
LETTERS = "fetch('/conduit/v1/pipelines/p/dead-letters').then((a) => a.json())"
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
        await tab.until("document.querySelector('#moment a[href*=until]')")
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
        await tab.size(1280, 580)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/issues")
        await tab.until("document.querySelectorAll('.issue.open').length === 2")
        await tab.picture("issues")
        shown = await tab.js(f"document.querySelector('{issue}').innerText")
        for said in ("sources.in: SourceError", "2 failed attempts", "put it back, or give"):
            assert said in shown
        assert await tab.js(f"document.querySelector('{issue} a').getAttribute('href')") == (
            "/dags/p/runs/manual__1%2B2/tasks/sources.in?try_number=2"
        )
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
