"""An HTTP receiver that is not the bottleneck: raw asyncio (uvloop where it is installed), no parsing of bodies.

`python -m benchmarks.receiver` listens on a free port of 127.0.0.1 and prints it. Each request is answered
204 with keep-alive, after `--delay` milliseconds; `GET` answers {"requests", "distinct"}: all requests, and different
`Idempotency-Key`s.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from benchmarks.place import ROOT

_KEY = re.compile(rb"\r\nidempotency-key: *([^\r]*)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Seen:
    """What was received by all connections."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.requests = 0
        self.keys: set[bytes] = set()


class Receiver(asyncio.Protocol):
    """One connection; requests one after the other, pipelined ones too."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, head + 2)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._data) < end:
                return
            self._take(self._data[: head + 2])
            self._data = self._data[end:]

    def _take(self, head: bytes) -> None:
        if head.startswith(b"GET"):
            body = json.dumps({"requests": self._seen.requests, "distinct": len(self._seen.keys)}).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        self._seen.requests += 1
        key = _KEY.search(head)
        if key:
            self._seen.keys.add(key[1])
        if self._seen.delay:
            asyncio.get_running_loop().call_later(self._seen.delay, self._answer)
        else:
            self._transport.write(_ANSWER)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_ANSWER)


async def serve(delay: float) -> None:
    seen = Seen(delay)
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(seen), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def receiving(delay: float = 0.0) -> Iterator[tuple[str, int]]:
    """A receiver in a process of its own for the block: (url, process id). It answers after `delay` seconds."""
    command = [sys.executable, "-m", "benchmarks.receiver", "--delay", str(round(delay * 1_000))]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/", process.pid
    finally:
        process.terminate()
        process.communicate()


def summary(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        told: dict[str, int] = json.load(answer)
    return told


if __name__ == "__main__":
    after = int(sys.argv[2]) / 1_000 if sys.argv[1:2] == ["--delay"] else 0.0
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(after))
    else:
        uvloop.run(serve(after))
