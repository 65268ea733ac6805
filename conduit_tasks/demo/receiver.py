"""A small HTTP receiver that misbehaves on purpose and remembers exactly the events that it accepted.

```
python -m conduit_tasks.demo.receiver --port 9000 --db .conduit/receiver.db --seed 2013 --refuse carrier=YV
```

Any POST, PUT or PATCH is an event, identified by its `Idempotency-Key`. Whether the n-th request of a key gets a 503 or
429 (with `Retry-After`) depends on seed, key and n alone, so a run can be repeated. Events whose JSON field has the
value named by `--refuse` get a 400, always. `GET /summary` returns counts, `GET /accepted` lists the accepted keys in
order, `PUT /mode` with {"mode": …} switches: `up`, `clean` (no faults), `down` (always 503), `refuse` (always 400),
`hang` (no answer).

Every request is a line in the log before it is answered; a restart reads the log back, so the counts survive.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

MODES = ("up", "clean", "down", "refuse", "hang")

ACCEPTED, DUPLICATE, REFUSED, UNAVAILABLE, LIMITED, MODE = "A", "D", "R", "U", "L", "M"
"""Outcomes in the first column of the log's lines; MODE: a switch of the mode."""


@dataclass
class Faults:
    """Faults on purpose: fractions of all requests (0 … 1), and the kind of event that is refused."""

    seed: int = 0
    unavailable: float = 0.01
    limited: float = 0.002
    retry_after: int = 1
    refuse: tuple[str, str] | None = None

    def of(self, key: str, attempt: int) -> str | None:
        """Returns UNAVAILABLE, LIMITED or None for the n-th request of a key."""
        dice = zlib.crc32(f"{self.seed}\0{attempt}\0{key}".encode()) / 2**32
        if dice < self.unavailable:
            return UNAVAILABLE
        return LIMITED if dice < self.unavailable + self.limited else None


@dataclass
class Seen:
    """All received requests, as in the log."""

    log: Path
    mode: str = "up"
    attempts: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, None] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    newest: dict[str, Any] = field(default_factory=dict)
    ordered: int = 0
    out_of_order: int = 0

    def open(self) -> None:
        """Reads the log back; cuts off a line that a crash left incomplete."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        data = self.log.read_bytes()
        whole = data.rfind(b"\n") + 1
        os.ftruncate(self._fd, whole)
        for line in data[:whole].decode().splitlines():
            outcome, key, order = line.split("\t", 2)
            if outcome == MODE:
                self.mode = key
            else:
                self._count(outcome, key, orjson.loads(order) if order else None)

    def note(self, outcome: str, key: str, order: tuple[str, Any] | None = None) -> None:
        """Writes a request to the log, then counts it; it is answered after that, so a crash of this process never
        forgets an answered request."""
        text = orjson.dumps(order).decode() if order is not None else ""
        os.write(self._fd, f"{outcome}\t{key}\t{text}\n".encode())
        self._count(outcome, key, order)

    def switch(self, mode: str) -> None:
        os.write(self._fd, f"{MODE}\t{mode}\t\n".encode())
        self.mode = mode

    def close(self) -> None:
        os.close(self._fd)

    def summary(self) -> dict[str, Any]:
        """Returns the counts. `accepted`: distinct events; `duplicates`: acceptances beyond the first of each;
        `ordered`: first acceptances that had both fields; `out_of_order`: those among them that came after a later one
        of their lane."""
        counts = self.outcomes
        return {
            "received": sum(counts.values()),
            "accepted": len(self.accepted),
            "duplicates": counts[DUPLICATE],
            "refused": counts[REFUSED],
            "unavailable": counts[UNAVAILABLE],
            "limited": counts[LIMITED],
            "ordered": self.ordered,
            "out_of_order": self.out_of_order,
            "most_attempts": max(self.attempts.values(), default=0),
            "mode": self.mode,
        }

    def _count(self, outcome: str, key: str, order: Any) -> None:
        self.outcomes[outcome] += 1
        self.attempts[key] = self.attempts.get(key, 0) + 1
        if outcome != ACCEPTED:
            return
        self.accepted[key] = None
        if order is not None:
            lane, sequence = order
            self.ordered += 1
            newest = self.newest.get(lane, sequence)
            # A lane that mixes text and numbers has no order to keep: that is a fault of the feed, and counted as one.
            if isinstance(newest, str) != isinstance(sequence, str) or sequence < newest:
                self.out_of_order += 1
            else:
                self.newest[lane] = sequence


class Receiver:
    """Handler of aiohttp's low-level server: without routing, because benchmarks need many requests per second."""

    def __init__(self, seen: Seen, faults: Faults, order: tuple[str, str] | None = None) -> None:
        self._seen, self._faults, self._order = seen, faults, order
        self._looks_inside = order is not None or faults.refuse is not None

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/mode" and request.method == "PUT":
            return await self._switch(request)
        if request.method == "GET":
            return self._tell(request.path)
        key = request.headers.get("Idempotency-Key")
        if not key:
            return web.Response(status=400, text="an Idempotency-Key header is needed\n")
        body = await request.read()
        return await self._take(key, body)

    async def _take(self, key: str, body: bytes) -> web.Response:
        seen, mode = self._seen, self._seen.mode
        if mode == "hang":
            await asyncio.sleep(3600)
        fault = UNAVAILABLE if mode == "down" else None
        if mode == "up":
            fault = self._faults.of(key, seen.attempts.get(key, 0) + 1)
        if fault == UNAVAILABLE:
            seen.note(UNAVAILABLE, key)
            return web.Response(status=503, text="not now\n")
        if fault == LIMITED:
            seen.note(LIMITED, key)
            return web.Response(status=429, headers={"Retry-After": str(self._faults.retry_after)}, text="slower\n")
        event = None
        if self._looks_inside:
            try:
                event = orjson.loads(body)
            except orjson.JSONDecodeError:
                seen.note(REFUSED, key)
                return web.Response(status=400, text="the body is not JSON\n")
        if mode == "refuse" or self._refuses(event):
            seen.note(REFUSED, key)
            return web.Response(status=400, text="this kind of event is not taken here\n")
        if key in seen.accepted:
            seen.note(DUPLICATE, key)
        else:
            seen.note(ACCEPTED, key, self._order_of(event))
        return web.Response(status=204)

    def _refuses(self, event: Any) -> bool:
        if self._faults.refuse is None or not isinstance(event, dict):
            return False
        name, value = self._faults.refuse
        return name in event and str(event[name]) == value

    def _order_of(self, event: Any) -> tuple[str, Any] | None:
        if self._order is None or not isinstance(event, dict):
            return None
        lane, sequence = self._order
        at = event.get(sequence)
        return (str(event.get(lane, "")), at) if isinstance(at, int | float | str) else None

    async def _switch(self, request: web.BaseRequest) -> web.Response:
        try:
            mode = orjson.loads(await request.read())["mode"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            mode = None
        if mode not in MODES:
            return web.Response(status=400, text=f'send {{"mode": …}} with one of {", ".join(MODES)}\n')
        self._seen.switch(mode)
        return web.json_response(self._seen.summary())

    def _tell(self, path: str) -> web.Response:
        if path == "/summary":
            return web.json_response(self._seen.summary())
        if path == "/accepted":
            return web.Response(text="".join(f"{key}\n" for key in self._seen.accepted))
        return web.Response(status=404, text="there are /summary and /accepted\n")


async def serve(seen: Seen, faults: Faults, order: tuple[str, str] | None, host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    seen.open()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = web.Server(Receiver(seen, faults, order), access_log=None)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        await stop.wait()
    finally:
        await runner.cleanup()
        seen.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="conduit_tasks.demo.receiver", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--db", type=Path, required=True, help="the log of every request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unavailable", type=float, default=0.01, help="part of the requests answered 503")
    parser.add_argument("--limited", type=float, default=0.002, help="part of the requests answered 429")
    parser.add_argument("--retry-after", type=int, default=1, help="seconds that a 429 asks for")
    parser.add_argument("--refuse", metavar="FIELD=VALUE", help="events that are answered 400")
    parser.add_argument(
        "--order", metavar="LANE,SEQUENCE", help="JSON fields: SEQUENCE, a number or text, never falls within a LANE"
    )
    args = parser.parse_args()
    refuse = order = None
    if args.refuse:
        name, equals, value = args.refuse.partition("=")
        if not equals:
            parser.error("--refuse takes FIELD=VALUE")
        refuse = (name, value)
    if args.order:
        lane, comma, sequence = args.order.partition(",")
        if not comma:
            parser.error("--order takes LANE,SEQUENCE")
        order = (lane, sequence)
    faults = Faults(args.seed, args.unavailable, args.limited, args.retry_after, refuse)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(Seen(args.db), faults, order, args.host, args.port))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
