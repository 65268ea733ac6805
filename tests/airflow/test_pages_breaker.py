"""A destination whose breaker is open, on its pipeline's page in a real Chromium and in the API: from the failure that
opens it to the record that is tried."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.airflow.api_client import PIPELINE, Airflow, airflow, broker_of, site
from tests.airflow.test_pages import picture
from tests.browser import tab_of
from tests.faults.conftest import receivers
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "receivers", "site"]

pytestmark = pytest.mark.timeout(900)

WRONG = "document.querySelector('#wrong').innerText"
STATE = "document.querySelector('#bottleneck').textContent"
WEB = r"document.querySelector('#n-destinations\\.web')"
OPEN = "web waits: its breaker is open since "


def breaking(home: Path, url: str, pause: str) -> None:
    """Writes `p`, whose destination `web` has a breaker that opens at the second failure."""
    breaker = f"{{timeout: 20s, retry: 3, backoff-delay: 1ms, breaker: {{failures: 2, pause: {pause}}}}}"
    write_pipeline(home, "p", PIPELINE.replace("URL", url).replace("{timeout: 20s}", breaker))


@pytest.mark.slow
def test_an_open_breaker_is_shown_until_a_record_was_delivered(
    site: str, browser: str, home: Path, airflow: Airflow, receivers: Any
) -> None:
    asyncio.run(_shown(site, browser, home, airflow, receivers()))


async def _shown(site: str, browser: str, home: Path, airflow: Airflow, receiver: Any) -> None:
    # Given a destination that answers 503, twice
    receiver.mode("down")
    breaking(home, receiver.url, "60s")
    events(home / "data", 5)
    await asyncio.to_thread(run_once, "p", "first")
    async with tab_of(browser, "none", site) as tab:
        await tab.size(1280, 1100)
        await tab.call("Page.navigate", url=f"{site}/conduit/pages/#/p")
        # Then the page says so, why, and when one record is tried; and the drawing marks it
        await tab.until(f"{WRONG}.includes('{OPEN}')")
        said = await tab.js(WRONG)
        assert "(2 failures in a row, the last: " in said
        assert "503" in said
        assert "); one record is tried at " in said
        assert await tab.js(f"{WEB}.querySelector('.state').textContent") == "breaker open"
        assert await tab.js(f"{WEB}.classList.contains('failed') && {WEB}.classList.contains('bottleneck')")
        assert (await tab.js(STATE)).startswith("Bottleneck: destinations.web: its breaker is open: nothing is sent")
        await picture(tab, "breaker")
        # And the API the same
        [file, web] = await asyncio.to_thread(destinations, site)
        assert file["breaker"] is None
        breaker = web["breaker"]
        assert (breaker["failures"], breaker["opened"]) == (2, 1)
        assert "503" in breaker["error"]
        assert 0 < breaker["left"] <= 60
        assert breaker["since"] < breaker["until"]

        # When somebody looks who may not read logs, then the answer is not quoted
        airflow.logs = False
        await tab.call("Page.reload")
        await tab.until(f"document.querySelector('#wrong') && {WRONG}.includes('{OPEN}')")
        assert "503" not in await tab.js(WRONG)
        airflow.logs = True

        # When its pause is over, then a record is tried now
        breaking(home, receiver.url, "10ms")
        broker = broker_of("p")
        with broker.leases.acquire("destinations.web", "somebody") as lease:
            broker.breakers.untrip("web", lease.token)
        broker.close()
        await tab.until(f"!{WRONG}.includes('{OPEN}')")
        await asyncio.to_thread(run_once, "p", "second")
        await tab.until(f"{WRONG}.includes('; one record is tried now')")

        # When that is delivered, then nothing is said any more
        receiver.mode("up")
        await asyncio.to_thread(run_once, "p", "third")
        await tab.until(f"{WRONG} === '' && {STATE} === 'Nobody waits for anybody.'")
        assert await tab.js(f"{WEB}.classList.contains('failed')") is False
        [_, web] = await asyncio.to_thread(destinations, site)
        assert web["breaker"] is None


def destinations(site: str) -> Any:
    return httpx.get(f"{site}/conduit/v1/pipelines/p", timeout=60).raise_for_status().json()["destinations"]
