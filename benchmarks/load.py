"""A load generator that is not the bottleneck: raw asyncio, one request after the other on each of some connections.

`python -m benchmarks.load HOST PORT PATH MODE REQUESTS CONNECTIONS BATCH` sends events of 225 bytes of data and prints
{"answers": {status: count}, "seconds"}. MODE is binary, structured or batch (of BATCH events).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

DATA = {"n": 0, "kind": "buy", "account": "A-000017", "amount": 12.5, "text": "x" * 140}


def requests(host: str, path: str, mode: str, count: int, batch: int) -> Iterator[bytes]:
    """Whole requests, each with ids of its own."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer bench\r\n"
    for n in range(count):
        attributes = {"specversion": "1.0", "id": f"e-{n}", "source": "/bench/load", "type": "bench.made"}
        if mode == "binary":
            body = json.dumps(DATA).encode()
            named = "".join(f"ce-{name}: {value}\r\n" for name, value in attributes.items())
            headers = f"Content-Type: application/json\r\n{named}"
        elif mode == "structured":
            body = json.dumps({**attributes, "data": DATA}).encode()
            headers = "Content-Type: application/cloudevents+json\r\n"
        else:
            events = [{**attributes, "id": f"e-{n}-{i}", "data": DATA} for i in range(batch)]
            body = json.dumps(events).encode()
            headers = "Content-Type: application/cloudevents-batch+json\r\n"
        yield f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Sends the next request when the one before was answered."""

    def __init__(self, left: Iterator[bytes], answers: Counter[str]) -> None:
        self._left, self._answers = left, answers
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say that they are asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        # Answers are small, and there is one on its way at most.
        self._answers[data[9:12].decode()] += 1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the gateway closed a connection"))

    def _next(self) -> None:
        request = next(self._left, None)
        if request is not None:
            self._transport.write(request)
        elif not self.done.done():
            self.done.set_result(None)


async def send(host: str, port: int, path: str, mode: str, count: int, connections: int, batch: int) -> None:
    # Made in advance, so that making them takes nothing from the gateway's core while it is measured.
    left = iter(list(requests(host, path, mode, count, batch)))
    answers: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    opened = [await loop.create_connection(lambda: Connection(left, answers), host, port) for _ in range(connections)]
    await asyncio.gather(*(connection.done for _, connection in opened))
    print(json.dumps({"answers": answers, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    import uvloop

    where, how = sys.argv[1:5], [int(n) for n in sys.argv[5:]]
    uvloop.run(send(where[0], int(where[1]), where[2], where[3], *how))
