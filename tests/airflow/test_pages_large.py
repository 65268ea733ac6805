"""Every view of an installation that is full: 1,000 pipelines, and one with 100,000 dead letters and 14 days of series.

What a view costs is counted in CPU: of the server, of Redis, and of the tab's own thread. Nobody waits so long on a
machine that has nothing else to do, and it is the same on one that has.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.dead_letters.columns import Columns
from conduit_tasks.dead_letters.store import letters_table, write_table
from conduit_tasks.operate.issues import note_failure
from conduit_tasks.redis_client.script import Script
from conduit_tasks.spool.store import open_store
from tests.airflow.api_client import PIPELINE, Airflow, airflow, broker_of, delivered
from tests.airflow.test_many_letters import letter, root
from tests.airflow.test_pages import history, picture, sample, site
from tests.airflow.test_pages_axe import AXE, LOOK
from tests.browser import Tab, tab_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "delivered", "sample", "site"]

pytestmark = pytest.mark.timeout(900)
IDS = [f"feed-{n:04d}" for n in range(999)]
PER, FILES = 1_000, 100
DAYS = 14 * 86_400
VIEWS = {
    "#/": "document.querySelectorAll('a[id^=p-]').length === 50",
    "#//issues": "document.querySelectorAll('a[id^=i-]').length === 50",
    "#/p": "document.querySelectorAll('.chart .u-legend').length === 6",
    "#/p?range=1209600": "document.querySelectorAll('.chart .u-legend').length === 6",
    "#/p/micro-batches": "document.querySelector('tbody td.number')",
    "#/p/issues": "document.querySelectorAll('article.issue').length === 5",
    "#/p/dead-letters": "document.querySelectorAll('tbody tr').length === 50",
    "#/p/dead-letters?error_class=http+422&offset=20000": "document.querySelectorAll('tbody tr').length === 50",
    "#/p/dead-letter/web/0/1050/49500/0": "document.querySelector('#try-it')",
    "#/p/records?node=destinations.web": "document.querySelectorAll('article.step').length === 10",
    "#/p/try?letter=web/0/1050/49500/0": "document.querySelector('#try')",
    "#/p/replay": "document.querySelector('#replay')",
    "#/p/record": "document.querySelector('#f-by')",
    "#/p/record?by=.Key&value=3": "document.querySelector('tbody a')",
    "#/p/record/RECORD": "document.querySelector('.waterfall')",
}
"""Address of a view → what is there once it has all that it shows."""
CHEAP = ("#/p/replay", "#/p/record")
"""Views of which one is shown between two looks at another."""
MOST = 1.0
"""CPU seconds that no view costs."""
STILL = ("records", "try")
"""Views that are not drawn again by themselves."""
WATCH = """
window.shift = 0, window.drawn = 0;
new PerformanceObserver((list) => list.getEntries().forEach((one) => { window.shift += one.value; }))
  .observe({type: 'layout-shift', buffered: false});
new MutationObserver(() => { window.drawn += 1; }).observe(document.querySelector('#page'), {childList: true});
"""


def many_letters() -> None:
    """100,000 open dead letters of `web`, of some causes, in 100 files."""
    store, table = open_store(root()), letters_table([letter(n, 1_001) for n in range(PER)])
    client = broker_of("p")
    key, seqs = client.keys.dead("web"), table["seq"].to_pylist()
    for n in range(FILES):
        batch, own = 1_001 + n, [PER * n + seq for seq in seqs]
        at = {"micro_batch": [batch] * PER, "seq": own}
        for name, values in at.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))
        write_table(store, root(), f"p/destination=web/{batch:010d}-{n:016x}.parquet", table)
        client.redis.hset(key, mapping={f"0-{batch}-{seq}-0": "1790000000000:1:http 400" for seq in own})
    # As some process has found them before this one began
    assert Columns(root(), "p").look().open.num_rows == PER * FILES + 1


def fortnight(script: Script) -> None:
    """Fourteen days of series, up to the two hours of `history`."""
    now, broker = int(time.time()), broker_of("p")
    figures = {
        "": {"r": 60_000, "b": 18_000_000, "m": 30},
        "file": {"d": 60_000, "p": 60_000, "b": 18_000_000, "A": 60_000},
        "web": {"d": 59_700, "x": 300, "p": 60_000, "b": 18_000_000, "t": 900, "B": 50_000, "D": 9_700},
    }
    times = range(now - DAYS, now - 7_300, 300)
    for key, said in figures.items():
        rest = [text for at in times for text in (str(at), json.dumps({f: n + at % 997 for f, n in said.items()}))]
        for n in range(0, len(rest), 2_000):
            script(broker.redis, {"series": broker.keys.series(key)}, node="", rest=rest[n : n + 2_000])
    history(script)


@pytest.fixture
def full(home: Path, airflow: Airflow, delivered: None, sample: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand pipelines `p` has all that a page can show, and each tenth of the others a task that failed."""
    text = PIPELINE.replace("URL", "http://localhost:1/")
    one = text[text.index("  - id: p") :]
    others = "".join(one.replace("id: p\n", f"id: {id}\n") for id in IDS)
    write_pipeline(home, "many", f'version: "2.2"\npipelines:\n{others}')
    monkeypatch.setattr(type(airflow), "get_authorized_dag_ids", lambda *_, **__: {"p", *IDS})
    fortnight(sample)
    many_letters()
    stored = broker_of("p").redis.dump(broker_of("p").keys.series(""))
    for n, id in enumerate(IDS):
        broker = broker_of(id)
        broker.redis.hset(broker.keys.pipeline, mapping={"status": "running", "sealed": 3})
        if not n % 10:
            broker.redis.restore(broker.keys.series(""), 0, stored)
            log = {"dag": id, "run": "r", "task": "sources.in", "map_index": -1, "try": 1}
            note_failure(broker, "sources.in", "sources.in", "SourceError", f"{id}: in is gone", "1", log)
        broker.close()


@pytest.mark.slow
def test_no_view_of_a_full_installation_costs_a_second_shifts_or_writes_an_error(
    site: str, browser: str, full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import replays

    # Airflow's database is asked for these
    monkeypatch.setattr(replays, "results", lambda *_: [])
    monkeypatch.setattr("conduit_tasks.airflow.api.live.CURVES", 1.0)
    assert AXE.exists(), "axe-core is missing: run scripts/js.sh"
    asyncio.run(_views(site, browser))


class Cost:
    """CPU seconds of server, Redis and tab since it was made."""

    def __init__(self, tab: Tab) -> None:
        self._tab, self._redis = tab, broker_of("p").redis

    async def __aenter__(self) -> Cost:
        self._before, self._began = await self._spent(), time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        after = await self._spent()
        self.of = {name: round(after[name] - self._before[name], 2) for name in after}
        self.seconds = round(time.monotonic() - self._began, 1)

    async def _spent(self) -> dict[str, float]:
        found = await self._tab.call("Performance.getMetrics")
        told: dict[str, Any] = self._redis.info("cpu")
        return {
            "server": time.process_time(),
            "redis": told["used_cpu_user"] + told["used_cpu_sys"],
            "tab": next(one["value"] for one in found["metrics"] if one["name"] == "TaskDuration"),
        }


async def _cost(tab: Tab, address: str, there: str) -> Cost:
    async with Cost(tab) as cost:
        await tab.js(f"window.drawn = 0, location.hash = {json.dumps(address)}")
        await tab.until(f"window.drawn && ({there})", 120)
    return cost


async def _views(site: str, browser: str) -> None:
    took: dict[str, dict[str, float]] = {}
    shifts: dict[str, float] = {}
    found: list[str] = []
    async with tab_of(browser, "none", site) as tab:
        await tab.call("Performance.enable", timeDomain="threadTicks")
        await tab.size(1280, 1_000)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p/record?by=.Key&value=3")
        await tab.until("document.querySelector('tbody a')")
        record = await tab.js("document.querySelector('tbody a').textContent")
        await tab.js(WATCH)
        for view, there in VIEWS.items():
            address = view.replace("RECORD", record)
            cost = await _cost(tab, address, there)
            if MOST <= sum(cost.of.values()) < 2 * MOST:
                # What other tests have left in this process may have been at work as well; a look for the first time
                # costs more than one that follows, but not twice as much as any may cost
                print(f"{view}: {cost.of}, {cost.seconds} s")
                between = next(each for each in CHEAP if each != view)
                await _cost(tab, between, VIEWS[between])
                cost = await _cost(tab, address, there)
            took[view] = cost.of
            # Then it is drawn again, or goes on by itself, and nothing moves
            await tab.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            await tab.js("window.shift = 0, window.drawn = 0")
            _, id, *name = view.partition("?")[0].split("/")
            if id and not name:
                await tab.js("new Promise((done) => setTimeout(done, 2500))")
            elif not {*STILL} & {*name}:
                await tab.until("window.drawn", 60)
                await tab.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            shifts[view] = round(await tab.js("window.shift"), 4)
            await picture(tab, f"large-{len(took)}")
            print(f"{view}: {cost.of}, {cost.seconds} s, shift {shifts[view]}")
        assert max(sum(each.values()) for each in took.values()) < MOST, took
        assert max(shifts.values()) < 0.01, shifts
        # And so in a narrow window, in the dark
        await tab.size(400, 1_000)
        await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        await tab.js(AXE.read_text())
        for view, there in VIEWS.items():
            await tab.js(f"window.drawn = 0, location.hash = {json.dumps(view.replace('RECORD', record))}")
            await tab.until(f"window.drawn && ({there})", 120)
            assert await tab.js("document.documentElement.scrollWidth <= 400"), f"{view} is wider"
            await picture(tab, f"large-dark-{[*VIEWS].index(view) + 1}")
            found += [f"{view}: {said}" for said in await tab.js(LOOK)]
        assert found == []
        assert tab.errors == []
