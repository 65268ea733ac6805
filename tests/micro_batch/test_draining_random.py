"""Drawn pipelines under drawn troubles: nothing is lost or out of order, every run ends by itself, and none ends
silently with work left (C1, C2, C9, X1).

`python -m tests.micro_batch.test_draining_random FIRST COUNT` tries more seeds than the tests do.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import ConduitError, PipelineStopped, SourceError, Unavailable
from conduit_tasks.micro_batch import at_work, course, draining, pace, pipeline_file
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.settings import forget
from tests.micro_batch.harness import here, payloads, state, write_pipeline
from tests.micro_batch.side_by_side import Played, play
from tests.redis_server import RedisServer

QUICK = {
    course: {"BEGINS_WITHIN": 0.6},
    draining: {"NEVER": 4.0},
    pace: {"PLANS_AGAIN": 0.1},
    at_work: {"AT_WORK": 3.0},
    pipeline_file: {"CHANGED": 0.2},
}
"""Times of a run, for the tests."""
SEEDS = [5, 7, 18, 27, 191, 201]
"""An endless source; a file that changes; a source that cannot be asked; a limit and a Redis that is away; 20
destinations and six slots; all at once."""
MOST = 400
"""Runs that follow each other at most."""
TROUBLED = 6.0
"""Seconds in which runs follow each other while there are troubles."""
PROCESSORS = {
    "set": '{id: mark, plugin: field.set, settings: {field: .Payload.After.seen, value: "yes"}}',
    "nack": "{id: number, plugin: field.convert, settings: {field: .Payload.After.m, type: int}}",
    "drop": "{id: some, plugin: filter, condition: '{{ eq .Payload.After.c \"drop\" }}'}",
}


class World:
    """One drawn pipeline, its files, and its troubles."""

    def __init__(self, seed: int, home: Path) -> None:
        r = self.random = random.Random(seed)
        self.home = home
        self.sources = r.choice([1, 1, 2, 2, 3])
        self.destinations = r.choice([1, 2, 3, 5, 20])
        self.slots = 6 if self.destinations == 20 else r.choice([1, 2, 6, 6, 100])
        self.limit = r.choice([60.0, 60.0, 2.0, 0.5])
        self.retries = r.choice([0, 2, 2])
        self.lag, self.batch = r.choice([None, 30, 1000]), r.choice([12, 40, 200])
        self.processor = r.choice(["", *PROCESSORS])
        self.isolate = r.random() < 0.4
        self.most = r.choice([None, None, None, 60])
        self.chosen = [f"d{d}" for d in range(0, self.destinations, 2)] if r.random() < 0.2 else []
        self.late = {f"destinations.d{r.randrange(self.destinations)}": 1.5} if r.random() < 0.3 else {}
        # The troubles: how often jobs fail, destinations are down, the first source cannot be asked or read
        self.fails, self.down = r.choice([0, 0, 0.1, 0.3]), r.choice([0, 0, 0.2])
        self.unplanned, self.unread = r.choice([0, 0, 0.3]), r.choice([0, 0, 0.6]) if self.sources > 1 else 0
        self.endless, self.away, self.changes = r.random() < 0.25, r.random() < 0.2, r.random() < 0.2
        self.version = 0
        self.troubled = True
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(self.sources)]
        self._lock = threading.Lock()

    @property
    def calm(self) -> bool:
        """Whether there are no troubles, so that the first runs have to deliver everything."""
        jobs = self.fails or self.down or self.unplanned or self.unread
        return not (jobs or self.endless or self.away or self.changes or self.chosen)

    def write(self) -> None:
        """The pipeline's file, another version each time."""
        one = "{{id: {id}, type: {kind}, plugin: file, settings: {{path: {path}, format: {format}}}}}".format
        lines = [
            f"micro-batch: {{max-records: {self.batch}}}",
            "error-recovery: {min-delay: 1ms, max-delay: 50ms, max-retries: 100000}",
            "dead-letter-queue: {window-size: 0}",
            f"drain-limit: {3600 + self.version}s",
            *([f"lag-budget: {{records: {self.lag}}}"] if self.lag else []),
            f"isolate: {str(self.isolate).lower()}",
            "connectors:",
        ]
        for s in range(self.sources):
            lines.append("  - " + one(id=f"s{s}", kind="source", path=f'"in{s}/*.jsonl"', format="jsonl, settle: 0s"))
        for d in range(self.destinations):
            lines.append("  - " + one(id=f"d{d}", kind="destination", path=f"out/d{d}.jsonl", format="payload"))
        if self.processor:
            lines += ["processors:", f"  - {PROCESSORS[self.processor]}"]
        text = 'version: "2.2"\npipelines:\n  - id: p\n' + "".join(f"    {line}\n" for line in lines)
        write_pipeline(self.home, "p.side", text)
        (self.home / "include/pipelines/p.side.yaml").rename(self.home / "include/pipelines/p.yaml")
        self.version += 1

    def add(self, source: int, count: int, *, dropped: bool = False) -> None:
        """More records of a source; `dropped`: the processor that drops some would drop all."""
        with self._lock:
            have = self.rows[source]
            new = [
                {"s": source, "n": n, "m": "x" if n % 7 == 3 else "1", "c": "drop" if dropped or n % 3 == 0 else ""}
                for n in range(len(have), len(have) + count)
            ]
            have += new
            folder = self.home / f"in{source}"
            folder.mkdir(exist_ok=True)
            with (folder / "a.jsonl").open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in new))

    def wanted(self, source: int) -> list[int]:
        """What the destinations get of a source, in order."""
        kept = {"nack": lambda r: r["m"] == "1", "drop": lambda r: r["c"] != "drop"}.get(self.processor, bool)
        return [row["n"] for row in self.rows[source] if kept(row)]

    def check(self, *, whole: bool) -> None:
        """What arrived is in order, and, where it is to be, all there."""
        for d in range(self.destinations):
            got = payloads(self.home / f"out/d{d}.jsonl")
            for s in range(self.sources):
                mine, wanted = [g["n"] for g in got if g["s"] == s], self.wanted(s)
                assert mine == (wanted if whole else wanted[: len(mine)]), f"source s{s} at d{d}"

    def draw(self) -> float:
        with self._lock:
            return self.random.random()

    def run_all(self, function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        """Where jobs run, and fail."""
        name = threading.current_thread().name
        if self.troubled:
            if self.draw() < 0.2:
                time.sleep(self.draw() * 0.3)
            if name == "sources.s0" and self.draw() < self.unread:
                raise SourceError("it cannot be read")
            if self.draw() < self.fails:
                raise RuntimeError("a worker died")
            if name.startswith("destinations.") and self.draw() < self.down:
                raise Unavailable("it is down")
        return here(function, pieces)

    @contextmanager
    def troubles(self, server: RedisServer) -> Iterator[None]:
        """What happens beside the runs, for the block."""
        over = threading.Event()

        def grow() -> None:
            while not over.wait(0.05):
                self.add(0, 5)

        def go_away() -> None:
            if not over.wait(0.5 + self.draw()):
                assert server.process is not None
                server.process.terminate()
                server.process.wait()
                time.sleep(0.5 + 3 * self.draw())
                server.start()

        def change() -> None:
            while self.version < 4 and not over.wait(0.7):
                self.write()

        wanted = {grow: self.endless, go_away: self.away, change: self.changes}
        threads = [threading.Thread(target=each) for each, there in wanted.items() if there]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
            self.troubled = False

    def play(self, run: str, left: int | None, **options: Any) -> Played | None:
        """One run; None where its plan fails."""
        limits = None if left is None else {"max-records": left}
        try:
            return play(
                *("p", run),
                **{"limit": self.limit, "slots": self.slots, "limits": limits, "retries": self.retries},
                **{"run_all": self.run_all, "patience": 300.0},
                **options,
            )
        except PipelineStopped:
            raise
        except ConduitError:
            assert self.troubled, "without troubles a plan goes well"
            return None

    def read(self) -> int:
        broker = state("p")
        totals = broker.micro_batches.totals()
        broker.close()
        return sum(totals.get(f"sources.s{s}/read", 0) for s in range(self.sources))


def live(seed: int, home: Path, server: RedisServer, patch: Callable[[Any, str, Any], None]) -> None:
    """Runs under troubles; then, without any, until no run follows."""
    world = World(seed, home)
    world.write()
    for s in range(world.sources):
        world.add(s, world.random.choice([0, 20, 60, 120]), dropped=world.random.random() < 0.2)
    own = FileSource.plan

    def plan(self: FileSource, *args: Any) -> Any:
        if world.troubled and "in0" in self.settings["path"] and world.draw() < world.unplanned:
            raise SourceError("it cannot be asked")
        return own(self, *args)

    patch(FileSource, "plan", plan)
    with world.troubles(server):
        until = time.monotonic() + TROUBLED
        played = world.play("run", world.most, chosen=world.chosen, late=world.late)
        count = 0
        while played is not None and played.again and time.monotonic() < until:
            count += 1
            played = world.play(f"run-{count}", played.left, chosen=world.chosen)
    if world.most and not world.away:
        assert world.read() <= world.most
    world.check(whole=world.calm and not world.most and played is not None and not played.again)
    if world.calm and played is not None and not played.again:
        assert played.state == "success"
        broker = state("p")
        assert set(broker.deliveries.cursors([f"d{d}" for d in range(world.destinations)])) == {
            broker.micro_batches.latest_sealed()
        }
        broker.close()
    for s in range(world.sources):
        world.add(s, 10)
    played, count = world.play("quiet", None), 0
    while played is not None and played.again:
        count += 1
        assert count < MOST, f"runs follow each other for ever: {played.again}"
        played = world.play(f"quiet-{count}", played.left)
    assert played is not None
    assert played.state == "success", played.said
    world.check(whole=True)
    broker = state("p")
    for s in range(world.sources):
        assert broker.positions.acked(f"s{s}") == broker.positions.planned(f"s{s}")
    assert broker.lifecycle.status().status == "running"
    broker.close()
    assert not plan_run("p", "after").work


@pytest.fixture
def own_server(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A Redis of the test's own, which goes away."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    monkeypatch.setenv("CONDUIT_REDIS_URL", server.url)
    forget()
    yield server
    server.kill()


def quicken(change: Callable[[Any, str, Any], None]) -> None:
    for module, times in QUICK.items():
        for name, seconds in times.items():
            change(module, name, seconds)


@pytest.mark.proves("C1", "C2", "C9", "X1")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_every_run_ends_by_itself_whatever_happens(
    home: Path, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    quicken(monkeypatch.setattr)
    live(seed, home, own_server, monkeypatch.setattr)


def main(first: int, count: int) -> None:
    """Lives so many seeds, and prints what became of each."""
    quicken(setattr)
    own = FileSource.plan
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="conduit-drain-") as top:
            home = Path(top) / "home"
            (home / "include" / "pipelines").mkdir(parents=True)
            server = RedisServer(Path(top))
            server.start()
            os.environ |= {"CONDUIT_HOME": str(home), "CONDUIT_REDIS_URL": server.url}
            os.environ |= {"CONDUIT_LEASE_TTL": "3", "CONDUIT_LEASE_GRACE": "0.2"}
            forget()
            began = time.monotonic()
            try:
                live(seed, home, server, setattr)
                said = "ok"
            except Exception as error:  # noqa: BLE001 - it is told
                said = f"{type(error).__name__}: {error}"
            FileSource.plan = own  # type: ignore[method-assign]
            print(seed, f"{time.monotonic() - began:.1f} s", said[:600], flush=True)
            server.kill()


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    main(int(sys.argv[1]), int(sys.argv[2]))
    # A thread that hangs would keep the process.
    os._exit(0)
