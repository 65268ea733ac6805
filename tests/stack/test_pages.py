"""The pages in the real Airflow, in a real Chromium: what they show, and the pictures of the documents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.browser import tab_of
from tests.stack.conftest import PATIENCE, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


@dataclass
class Picky:
    """A target that refuses what looks like markup, while `refuse`. `got`: every body."""

    url: str = ""
    refuse: bool = True
    got: list[bytes] = field(default_factory=list)


@pytest.fixture
def picky() -> Iterator[Picky]:
    about = Picky()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            about.got.append(body)
            said = b"no <b>markup</b> here" if about.refuse and b"<img" in body else b""
            self.send_response(400 if said else 204)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    about.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield about
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_pages_show_pipelines_live_in_airflow_follow_its_theme_and_lead_to_its_dags(
    stack: Stack, picky: Picky, browser: str
) -> None:
    from tests.stack.test_stack import token

    # Given a delivered pipeline, one record of which looks like markup
    target = f"plugin: http, settings: {{url: '{picky.url}'}}, dead-letter-queue: {{window-size: 0}}"
    stack.pipeline("shown", target, "isolate: true\n    event-time: '.Metadata[\"opencdc.readAt\"]'")
    stack.write("shown", "a", 1, 40)
    side = stack.home / "in" / "shown" / "b.side"
    side.write_text('{"m": "<img src=x onerror=alert(1)>"}\n')
    side.rename(stack.home / "in" / "shown" / "b.jsonl")
    stack.run("shown")
    url = stack.state.api_url
    allowed = token(stack, stack.home / ".conduit" / "airflow" / "passwords.json")

    asyncio.run(_look(browser, url, allowed, lambda: stack.write("shown", "c", 41, 60), lambda: stack.run("shown")))

    # And its dead letter is sent again from its page, once the target takes it
    picky.refuse = False
    asyncio.run(_redrive(browser, url, allowed))
    assert sum(b"<img" in body for body in picky.got) == 2, "refused once, taken once"

    # And all of it is replayed from there, once it was counted
    sent = len(picky.got)
    asyncio.run(_replay(browser, url, allowed))
    assert len(picky.got) == sent + 61

    # And it is stopped and started there, alone and as a whole
    asyncio.run(_stop_and_start(browser, url, allowed))
    assert json.loads(stack.conduit("status", "shown", "--format", "json"))["status"] == "running"


async def _look(browser: str, url: str, allowed: str, write: Callable[[], None], run: Callable[[], Any]) -> None:
    async with tab_of(browser, allowed, url) as tab:
        # When Airflow's own navigation opens the list, in its frame
        await tab.call("Page.navigate", url=f"{url}/plugin/conduit")
        inner = "document.querySelector('iframe').contentDocument"
        await tab.until(f"{inner}?.querySelector('#p-shown')", PATIENCE)
        assert "running" in await tab.js(f"{inner}.querySelector('#page').innerText")
        await tab.picture("pipelines")

        # Then Airflow's own light and dark are followed
        for dark in ("true", "false"):
            await tab.js(f"document.documentElement.classList.toggle('dark', {dark})")
            await tab.until(f"{inner}.documentElement.classList.contains('dark') === {dark}")

        # And the keyboard opens a pipeline
        await tab.js(f"document.querySelector('iframe').focus(), {inner}.querySelector('#p-shown').focus()")
        await tab.key("Enter", 13, "\r")
        await tab.until(f"{inner}.querySelector('#v-micro-batches') && {inner}.querySelector('.flow')")
        await tab.js("document.documentElement.classList.add('dark')")
        await tab.until(f"{inner}.documentElement.classList.contains('dark')")
        await tab.picture("pipeline-dark")
        await tab.js("document.documentElement.classList.remove('dark')")

        # And a link leads to the DAG, out of the frame, and its tab back to the pipeline
        await tab.js(f"{inner}.querySelector('a[target=_top]').click()")
        await tab.until("location.pathname.endsWith('/dags/shown')")
        await tab.call("Page.navigate", url=f"{url}/dags/shown/plugin/conduit-pipeline")
        await tab.until(f"{inner}?.querySelector('.flow')", PATIENCE)

        # And it is live: what a run delivers shows without loading again
        await tab.call("Page.navigate", url=f"{url}/conduit/pages/#/shown")
        await tab.until("location.hash === '#/shown' && document.querySelector('.flow')")
        await tab.js("window.same = true")
        await tab.picture("pipeline")
        write()
        await asyncio.to_thread(run)
        await tab.until("/2 sealed/.test(document.querySelector('.flow').textContent)")
        # All of it by a stream, behind Airflow's own sign-in and middleware
        assert any("/shown/live?" in url for url in tab.requests)
        assert not any(url.endswith(("/pipelines/shown", "/pipelines/shown/topology")) for url in tab.requests)
        await tab.until("document.querySelector('#front').textContent.includes('all of it is done')")
        assert await tab.js("window.same")

        # And its last records are shown, and one is tried with its file, by whoever Airflow lets
        await tab.js("location.hash = '#/shown/records?node=destinations.out'")
        await tab.until("document.querySelectorAll('article.step').length === 20", PATIENCE)
        await tab.js("document.querySelector('#r-0 a').click()")
        await tab.until("document.querySelector('#f-file')?.value.includes('id: shown')", PATIENCE)
        await tab.js("document.querySelector('#try').click()")
        await tab.until("document.getElementById('said').textContent === 'No step fails.'", PATIENCE)


async def _redrive(browser: str, url: str, allowed: str) -> None:
    said = "document.getElementById('said').textContent"
    async with tab_of(browser, allowed, url) as tab:
        # What the filter leaves out would not go
        await tab.call("Page.navigate", url=f"{url}/conduit/pages/#/shown/dead-letters?error_class=none")
        await tab.until("document.querySelector('#redrive')")
        assert await tab.js("document.querySelector('#redrive').disabled")
        # The keyboard fills the filter in and asks what would go
        await tab.js(
            "document.querySelector('#f-error_class').value = 'http 400', document.querySelector('#f-go').focus()"
        )
        await tab.key("Enter", 13, "\r")
        await tab.until("location.hash.includes('http+400') && !document.querySelector('#would').disabled")
        shown = await tab.js("document.querySelector('#page').innerText")
        assert "no <b>markup</b> here" in shown, "markup is text"
        await tab.picture("dead-letters")
        await tab.js("document.querySelector('#would').focus()")
        await tab.key("Enter", 13, "\r")
        await tab.until(f"{said} === 'Would be sent again: out: 1 dead letter.'")
        # Nothing goes where it is not confirmed; then it goes, and is a dead letter no more
        await tab.js(
            "window.confirm = (text) => (window.asked = text, false), document.querySelector('#redrive').click()"
        )
        await tab.until("window.asked === 'Send again out: 1 dead letter?'")
        await tab.js("window.confirm = () => true, document.querySelector('#redrive').click()")
        await tab.until(f"{said}.startsWith('Being sent again: out: 1 dead letter.')", PATIENCE)
        await tab.until("document.querySelector('#page').innerText.includes('Nothing is dead here')", PATIENCE)


async def _replay(browser: str, url: str, allowed: str) -> None:
    shown = "document.querySelector('#page').innerText"
    async with tab_of(browser, allowed, url) as tab:
        await tab.call("Page.navigate", url=f"{url}/conduit/pages/#/shown/replay")
        await tab.until("document.querySelector('#replay')")
        await tab.js(
            "const fill = (id, value) => { document.getElementById(id).value = value; };"
            "fill('f-from', '2020-01-01'), fill('f-to', '2100-01-01'), fill('f-what', 'all');"
            "document.querySelector('#d-out').click()"
        )
        await tab.js("document.querySelector('#would').focus()")
        await tab.key("Enter", 13, "\r")
        await tab.until(f"{shown}.includes('out: 61 would go')", PATIENCE)
        await tab.picture("replay")
        await tab.js(
            "window.confirm = (text) => (window.asked = text, true), document.querySelector('#replay').focus()"
        )
        await tab.key("Enter", 13, "\r")
        await tab.until("window.asked === 'Replay all from 2020-01-01 to 2100-01-01, to out?'")
        await tab.until(f"{shown}.includes('out: 61 delivered')", PATIENCE)


async def _stop_and_start(browser: str, url: str, allowed: str) -> None:
    async with tab_of(browser, allowed, url) as tab:
        await tab.call("Page.navigate", url=f"{url}/conduit/pages/#/shown")
        await tab.until("document.querySelector('#stop-out')")
        badges = "[...document.querySelectorAll('.badge')].map((b) => b.textContent).join()"
        for button, wanted in (
            ("stop-out", "running,stopped"),
            ("start-out", "running,running"),
            ("stop", "stopped,running"),
            ("start", "running,running"),
            ("force", "stopped,running"),
            ("start", "running,running"),
        ):
            await tab.until(f"document.querySelector('#{button}') && !document.querySelector('#{button}').disabled")
            await tab.js(f"window.confirm = () => true, document.querySelector('#{button}').focus()")
            await tab.key("Enter", 13, "\r")
            await tab.until(f"{badges} === '{wanted}'", PATIENCE)
