"""A real Chromium, driven by the DevTools protocol: what the tests of the pages look through."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PICTURES = bool(os.environ.get("CONDUIT_TEST_PICTURES"))
"""Whether the pictures of the documents are taken again. Read here: a home of a test has an environment of its own."""

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--remote-debugging-port=0", "--window-size=1280,800"),
    # Nothing that no test asks for
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"),
    *("--disable-breakpad", "--disable-default-apps", "--no-default-browser-check", "--metrics-recording-only"),
    "about:blank",
)


class NotAnswered(Exception):
    """What a tab says where it cannot do what it is asked."""


class Tab:
    """One tab, driven by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.errors: list[str] = []
        """What the pages wrote to the console as an error, and exceptions that nobody caught."""
        self.requests: list[str] = []
        """Addresses that the pages asked for."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            said = json.loads((await self._socket.receive(timeout=240)).data)
            self._listen(said)
            if said.get("id") == self._number:
                if "error" in said:
                    raise NotAnswered(said)
                found: dict[str, Any] = said["result"]
                return found

    def _listen(self, said: dict[str, Any]) -> None:
        about = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:500])
        elif said.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.errors.append(json.dumps(about["args"])[:500])
        elif said.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif said.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(json.dumps(about["entry"])[:500])

    async def js(self, code: str) -> Any:
        said = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        return said["result"].get("value")

    async def until(self, code: str, seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            # Between two documents nothing can be asked.
            with suppress(NotAnswered):
                if await self.js(f"Boolean({code})"):
                    return
                shown = await self.js("document.body?.innerText")
                assert time.monotonic() < deadline, f"not in time: {code}; shown: {shown}"
            assert time.monotonic() < deadline + 60, f"nobody answers {code}"
            await asyncio.sleep(0.1)

    async def key(self, key: str, code: int, text: str = "") -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    async def size(self, width: int, height: int) -> None:
        """Gives the window another size."""
        about = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **about)

    async def picture(self, name: str) -> None:
        """Takes a picture of the documents, if they are to be taken again."""
        if PICTURES:
            found = await self.call("Page.captureScreenshot", format="png")
            (IMAGES / f"{name}.png").write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium() -> Iterator[str]:
    """Runs one without a window; gives the address of its DevTools."""
    program = shutil.which("chromium")
    assert program, "Chromium is missing: run scripts/env.sh --tests as root, or apt-get install chromium"
    profile = tempfile.mkdtemp(prefix="conduit-chromium-")
    process = subprocess.Popen(
        [program, f"--user-data-dir={profile}", *OPTIONS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        said = Path(profile) / "DevToolsActivePort"
        deadline = time.monotonic() + 300
        while not (said.exists() and "\n" in said.read_text()):
            assert time.monotonic() < deadline, "no Chromium in time"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{said.read_text().split()[0]}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


@asynccontextmanager
async def tab_of(browser: str, token: str, url: str) -> AsyncIterator[Tab]:
    """Its only tab, which has neither cookies nor a cache of the test before, signed in to Airflow."""
    async with aiohttp.ClientSession() as session:
        deadline, tabs = time.monotonic() + 240.0, list[dict[str, Any]]()
        while not tabs:  # it answers before it has opened its first one
            assert time.monotonic() < deadline, "no tab"
            await asyncio.sleep(0.05)
            async with session.get(f"{browser}/json") as answer:
                tabs = [t for t in await answer.json(content_type=None) if t["type"] == "page"]
        # Its size and what else is emulated go with the connection.
        async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            for kind in ("Cookies", "Cache"):
                await tab.call(f"Network.clearBrowser{kind}")
            await tab.call("Network.setCookie", name="_token", value=token, url=url)
            try:
                yield tab
            finally:
                # It neither draws nor asks a server on.
                await tab.call("Page.navigate", url="about:blank")
