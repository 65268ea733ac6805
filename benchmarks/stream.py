"""`stream`: an event's way under `@continuous`, gateway → HTTP, by the real scheduler, over hand-overs.

An embedded stack of its own. The load and the receiver are processes of their own; an event carries when it was made,
and its latency ends when the receiver has its request. When a run has lasted its time, it hands over.
`python -m benchmarks.stream receive | send HOST PORT PATH RATE SECONDS` are those two processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import redis

from benchmarks.gateway import PATH, SOURCE
from benchmarks.measure import tree_cpu
from benchmarks.over_http import to_http
from benchmarks.place import PIPELINE, ROOT, Place
from benchmarks.tables import Figure, Result
from benchmarks.whole import stack
from conduit_tasks.airflow.schedule import CONTINUOUS, HAND_OVER
from conduit_tasks.pipeline.schedule import IDLE as IDLE_RUN
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State

TICK, CONNECTIONS, IDLE = 0.02, 8, 60.0
RATES = (100, 2_000)
"""Events a second."""
_MADE = re.compile(rb'made\\*": ?([0-9.]+)')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def run(place: Place, seconds: int, lasts: int) -> Result:
    """`seconds` of load at each rate, then a minute of none; `lasts`: seconds that a run of the pipeline lasts."""
    place.archive()
    settings = {"auth": "env:BENCH_TOKEN"}
    with receiving() as url:
        place.pipeline(
            {"id": SOURCE, "type": "source", "plugin": "gateway", "settings": settings},
            to_http(f"{url}/"),
            schedule="@continuous",
            **{"drain-limit": f"{lasts}s"},
        )
        with stack(place, {"BENCH_TOKEN": "bench"}):
            return measure(place, url, seconds, f"runs of {lasts} s")


def measure(place: Place, url: str, seconds: int, said: str) -> Result:
    """On a stack that is up. `said`: of its runs."""
    rows: list[list[Any]] = []
    figures: list[Figure] = []
    numbers: dict[str, float] = {}
    layout = Layout(place.home)
    state = State.load(layout)
    at = urlsplit(state.gateway_url)
    with Api(state.api_url, password=load_secrets(layout)["password"]) as api:
        send(at, 10, 1)
        _wait(lambda: told(url)["events"] >= 10)
        for rate in RATES:
            told(url, anew=True)
            runs = _runs(api)
            with held(state.redis_url) as memory:
                sent = send(at, rate, seconds)
            _wait(lambda sent=sent: told(url)["events"] >= sent)
            got, handed = told(url), _runs(api) - runs
            lost = sent - got["distinct"]
            rows.append([f"{rate:,}/s", sent, lost, got["p50"], got["p99"], got["most"], handed, memory.said()])
            figures += [
                Figure(f"{rate:,}/s: p50", got["p50"], "≤", 0.3, " s"),
                Figure(f"{rate:,}/s: p99", got["p99"], "≤", 1.0, " s"),
                Figure(f"{rate:,}/s: lost", float(lost), "≤", 0),
            ]
            numbers |= {f"p50.{rate}": got["p50"], f"p99.{rate}": got["p99"], f"handed.{rate}": float(handed)}
    scheduler = psutil.Process(state.processes["scheduler"].pid)
    before, began = sum(scheduler.cpu_times()[:2]), time.monotonic()
    idle = _idle(min(IDLE, seconds))
    itself = (sum(scheduler.cpu_times()[:2]) - before) / (time.monotonic() - began)
    figures.append(Figure("idle: of a core, the pipeline's processes", 100 * idle, "≤", 3, " %"))
    figures.append(Figure("idle: of a core, the scheduler", 100 * itself, "≤", 6, " %"))
    if logs := of_a_day(layout.airflow / "logs" / f"dag_id={PIPELINE}"):
        figures.append(Figure("idle: logs of its tasks in a day", logs / 1e6, "≤", 1, " MB"))
    return Result(
        f"stream: gateway → HTTP under @continuous, {seconds} s at each rate, {said}",
        ("rate", "sent", "lost", "p50 s", "p99 s", "most s", "runs begun", "Redis MB"),
        rows,
        figures,
        [
            "A run that begins is a hand-over. Redis MB: most in each quarter of the load.",
            "Idle: the applications of the pipeline's nodes, no events. Logs of a day: with the default runs of 10",
            "minutes, from a run that was handed over and one that left its work to that.",
        ],
        {**numbers, "idle": idle, "scheduler": itself},
    )


@dataclass
class Held:
    """Bytes that Redis held, looked at once a second."""

    bytes: list[int] = field(default_factory=list)

    def said(self) -> str:
        """Returns the most of each quarter of the time, in MB."""
        quarter = max(1, -(-len(self.bytes) // 4))
        parts = [self.bytes[at : at + quarter] for at in range(0, len(self.bytes), quarter)]
        return " ".join(f"{max(part) / 1e6:.1f}" for part in parts)


@contextmanager
def held(url: str) -> Iterator[Held]:
    """Looks at Redis' memory while the block runs."""
    out, over = Held(), threading.Event()

    def look() -> None:
        with redis.Redis.from_url(url) as client:
            while not over.wait(1):
                out.bytes.append(int(client.info("memory")["used_memory"]))

    thread = threading.Thread(target=look, name="memory")
    thread.start()
    try:
        yield out
    finally:
        over.set()
        thread.join()


def _runs(api: Api) -> int:
    return int(api.request("GET", f"/dags/{PIPELINE}/dagRuns")["total_entries"])


def _idle(seconds: float) -> float:
    """CPU of the processes at work on the pipeline, as a share of one core."""

    def cpu() -> dict[int, float]:
        found = [p.pid for p in psutil.process_iter(["cmdline"]) if _of_pipeline(p.info["cmdline"] or [])]
        return {pid: tree_cpu(pid) for pid in found}

    time.sleep(5)
    before, began, used = cpu(), time.monotonic(), 0.0
    while time.monotonic() - began < seconds:
        time.sleep(1)
        # Every second, as those of a run end with it, and those of the next one begin.
        now = cpu()
        used += sum(max(0.0, spent - before.get(pid, 0.0)) for pid, spent in now.items())
        before = now
    return used / (time.monotonic() - began)


def of_a_day(logs: Path) -> float:
    """Returns the bytes that the tasks of an idle pipeline log in a day, by the logs of runs that are over; 0 if they
    do not say: no run was handed over, or none left its work to an idle one."""
    runs = [[file.stat().st_size for file in run.rglob("*.log")] for run in logs.iterdir()]
    handed = min((sum(of) for of in runs if len(of) > 1), default=0)
    left = max((sum(of) for of in runs if len(of) == 1), default=0)
    every = CONTINUOUS - HAND_OVER
    cycle = 1 + (IDLE_RUN - CONTINUOUS) // every
    return 86_400 / every / cycle * (handed + (cycle - 1) * left) if handed and left else 0.0


def _of_pipeline(command: list[str]) -> bool:
    return "--pipeline" in command and PIPELINE in command


def _wait(condition: Any, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("the events did not arrive")
        time.sleep(0.2)


# -- the two processes


@contextmanager
def receiving() -> Iterator[str]:
    """A receiver for the block; its URL."""
    command = [sys.executable, "-m", "benchmarks.stream", "receive"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.communicate()


def told(url: str, *, anew: bool = False) -> dict[str, Any]:
    """What has been received; `anew`: since the last time this was asked so."""
    with urllib.request.urlopen(f"{url}/{'anew' if anew else ''}", timeout=30) as answer:
        return dict(json.load(answer))


def send(at: Any, rate: int, seconds: int) -> int:
    """Sends events at this rate; how many were taken."""
    words = [str(at.hostname), str(at.port), PATH, str(rate), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.stream", "send", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


class _Receiver(asyncio.Protocol):
    """One connection; all of them share what was seen."""

    took: list[float] = []  # noqa: RUF012 - of all connections
    made: set[bytes] = set()  # noqa: RUF012

    def connection_made(self, transport: Any) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._data) < end:
                return
            self._answer(self._data[:end])
            self._data = self._data[end:]

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET"):
            body = json.dumps(self._seen()).encode()
            if request.startswith(b"GET /anew"):
                self.took.clear()
                self.made.clear()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        if (found := _MADE.search(request)) is not None:
            self.took.append(time.time() - float(found[1]))
            self.made.add(found[1])
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def _seen(self) -> dict[str, float]:
        took = sorted(self.took) or [0.0]
        share = {name: round(took[int(len(took) * of)], 3) for name, of in (("p50", 0.5), ("p99", 0.99))}
        return {"events": len(self.took), "distinct": len(self.made), "most": round(took[-1], 3), **share}


async def _receive() -> None:
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _send(host: str, port: int, path: str, rate: int, seconds: int) -> int:
    """At even times, by a free connection each; made when they are due, not when they are sent."""
    due: asyncio.Queue[list[float] | None] = asyncio.Queue()
    refused: list[bytes] = []

    async def connection(numbers: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while (times := await due.get()) is not None:
            # Times are made different, as events are told apart by them.
            events = [_event(next(numbers), made) for made in times]
            body = json.dumps(events).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer bench\r\n"
            head += f"Content-Type: application/cloudevents-batch+json\r\nContent-Length: {len(body)}\r\n\r\n"
            while True:
                try:
                    writer.write(head.encode() + body)
                    answer = await reader.readuntil(b"\r\n\r\n")
                    break
                except (asyncio.IncompleteReadError, ConnectionError):
                    # The gateway closes connections every now and then; what it has already is known to it by its id.
                    reader, writer = await asyncio.open_connection(host, port)
            if length := _LENGTH.search(answer):
                await reader.readexactly(int(length[1]))
            if not answer.startswith(b"HTTP/1.1 202"):
                refused.append(answer)
        writer.close()

    numbers = itertools.count()
    tasks = [asyncio.create_task(connection(numbers)) for _ in range(CONNECTIONS)]
    began, made, apart = time.time(), 0, 1 / rate
    while made < rate * seconds:
        now = time.time()
        times = []
        while made < rate * seconds and began + made * apart <= now:
            times.append(began + made * apart)
            made += 1
        if times:
            due.put_nowait(times)
        await asyncio.sleep(TICK if rate > 1 / TICK else apart / 2)
    for _ in tasks:
        due.put_nowait(None)
    await asyncio.gather(*tasks)
    if refused:
        raise SystemExit(f"{len(refused)} requests were refused: {refused[0]!r}")
    return made


def _event(n: int, made: float) -> dict[str, Any]:
    attributes = {"specversion": "1.0", "id": f"e-{made:.6f}-{n}", "source": "/bench/stream", "type": "bench.made"}
    return {**attributes, "data": {"n": n, "made": round(made, 6), "text": "x" * 140}}


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        asyncio.run(_receive())
    else:
        host, port, path, rate, seconds = sys.argv[2:]
        print(asyncio.run(_send(host, int(port), path, int(rate), int(seconds))))
