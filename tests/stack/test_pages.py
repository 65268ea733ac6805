"""The pages in the real Airflow, in a real Chromium: what they show, and the pictures of the documents."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.stack.conftest import PATIENCE, Stack, until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = "CONDUIT_TEST_PICTURES"
"""Set, the pictures of the documents are taken anew."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


class Tab:
    """One tab, driven by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            said = json.loads((await self._socket.receive(timeout=60)).data)
            if said.get("id") == self._number:
                assert "error" not in said, said
                found: dict[str, Any] = said["result"]
                return found

    async def js(self, code: str) -> Any:
        said = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        return said["result"].get("value")

    async def until(self, code: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not await self.js(f"Boolean({code})"):
            assert time.monotonic() < deadline, (
                f"not in time: {code}; shown: {await self.js('document.body.innerText')}"
            )
            await asyncio.sleep(0.1)

    async def key(self, key: str, code: int, text: str = "") -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def picture(self, name: str) -> None:
        if os.environ.get(PICTURES):
            found = await self.call("Page.captureScreenshot", format="png")
            (IMAGES / f"{name}.png").write_bytes(base64.b64decode(found["data"]))


@pytest.fixture
def browser() -> Iterator[str]:
    """The address of a Chromium's DevTools."""
    program = shutil.which("chromium")
    assert program, "Chromium is missing: run scripts/env.sh --tests as root, or apt-get install chromium"
    profile = tempfile.mkdtemp(prefix="conduit-chromium-")
    process = subprocess.Popen(
        [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1280,800", "about:blank"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        said = Path(profile) / "DevToolsActivePort"
        until(lambda: said.exists() and "\n" in said.read_text(), 60)
        yield f"http://127.0.0.1:{said.read_text().split()[0]}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


@asynccontextmanager
async def tab_of(browser: str, token: str, url: str) -> AsyncIterator[Tab]:
    """Its tab, signed in to Airflow."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{browser}/json") as answer:
            tabs = [t for t in await answer.json(content_type=None) if t["type"] == "page"]
        async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Network"):
                await tab.call(f"{domain}.enable")
            await tab.call("Network.setCookie", name="_token", value=token, url=url)
            yield tab


@pytest.fixture
def picky() -> Iterator[str]:
    """The address of a target that refuses what looks like markup."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            said = b"no <b>markup</b> here" if b"<img" in body else b""
            self.send_response(400 if said else 204)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_pages_show_pipelines_live_in_airflow_follow_its_theme_and_lead_to_its_dags(
    stack: Stack, picky: str, browser: str
) -> None:
    from tests.stack.test_stack import token

    # Given a delivered pipeline, one record of which looks like markup
    stack.pipeline("shown", f"plugin: http, settings: {{url: '{picky}'}}, dead-letter-queue: {{window-size: 0}}")
    stack.write("shown", "a", 1, 40)
    side = stack.home / "in" / "shown" / "b.side"
    side.write_text('{"m": "<img src=x onerror=alert(1)>"}\n')
    side.rename(stack.home / "in" / "shown" / "b.jsonl")
    stack.run("shown")
    url = stack.state.api_url
    allowed = token(stack, stack.home / ".conduit" / "airflow" / "passwords.json")

    asyncio.run(_look(browser, url, allowed, lambda: stack.write("shown", "c", 41, 60), lambda: stack.run("shown")))


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
        await tab.until(f"{inner}.querySelector('svg')")
        await tab.js("document.documentElement.classList.add('dark')")
        await tab.until(f"{inner}.documentElement.classList.contains('dark')")
        await tab.picture("pipeline-dark")
        await tab.js("document.documentElement.classList.remove('dark')")

        # And a link leads to the DAG, out of the frame, and its tab back to the pipeline
        await tab.js(f"{inner}.querySelector('a[target=_top]').click()")
        await tab.until("location.pathname.endsWith('/dags/shown')")
        await tab.call("Page.navigate", url=f"{url}/dags/shown/plugin/conduit-pipeline")
        await tab.until(f"{inner}?.querySelector('svg')", PATIENCE)

        # And it is live: what a run delivers shows without loading anew
        await tab.call("Page.navigate", url=f"{url}/conduit/pages/#/shown")
        await tab.until("document.querySelector('svg')")
        await tab.js("window.same = true")
        await tab.picture("pipeline")
        write()
        await asyncio.to_thread(run)
        await tab.until("/cursor 2 /.test(document.querySelector('svg').textContent)")
        assert await tab.js("window.same")
