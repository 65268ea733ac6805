"""The world alone: what a process leaves behind does nothing in another's name, and no order is one to lean on."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import secrets
import shutil
import sys
import threading
import uuid
import weakref
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

import conduit_tasks
from conduit_tasks.broker.broker import Broker
from conduit_tasks.record.record import Record
from conduit_tasks.verify import receiver, scheduler
from conduit_tasks.verify.actor import Aim, Crash, Rates
from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.faults import faulty
from conduit_tasks.verify.world import World
from tests.redis_server import RedisServer

CLOCKS = ("time.monotonic", "time.time", "time.time_ns", "time.sleep", "uuid.uuid4")
NOTHING = Rates(0, 0, 0, 0, 0, 0)


class Left:
    """Writes when it is cleared away, as a file's buffer does."""

    def __init__(self, world: World, written: list[str]) -> None:
        self.world, self.written = world, written

    def __del__(self) -> None:
        self.world.call("what was left is written", lambda: self.written.append("it"))


@pytest.mark.slow
@pytest.mark.parametrize("cyclic", [True, False], ids=["garbage", "in a frame"])
def test_what_a_dead_process_left_is_not_written_by_those_that_live(
    cyclic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    world, written, cleared = World(1, NOTHING, 0, trace=True), list[str](), list[Any]()
    held = list[weakref.ref[Left]]()

    def dies() -> None:
        left = Left(world, written)
        held.append(weakref.ref(left))
        if cyclic:
            vars(left)["me"] = left
        world.die("here")

    def lives() -> None:
        for _ in range(50):
            world.call("an operation", lambda: [[] for _ in range(20)])
            world.sleep(0.01)

    def clearing(phase: str, _: dict[str, int]) -> None:
        cleared.append(world.actor)

    # Given one process that dies, one that goes on, and an interpreter that would clear garbage away all the time
    often = gc.get_threshold()
    gc.set_threshold(10, 2, 2)
    try:
        with world.tidy():
            gc.callbacks.append(clearing)
            actors = [world.start("dead", dies), world.start("alive", lives)]
            while world.step():
                pass
            gc.callbacks.remove(clearing)
            # What needs no clearing away was gone with its process: a lock on a file would be free
            assert (held[0]() is None) is not cyclic
    finally:
        gc.set_threshold(*often)
    # Then nobody has written what was left, nor cleared it away who could
    assert not written
    assert not [actor for actor in cleared if actor is None or not actor.dead]
    assert [line.split("  ")[-1] for line in world.history] == ["*** dead dies here"] + ["alive: an operation"] * 50
    # And the one that went on ended well
    assert isinstance(actors[0].error, Crash)
    assert actors[1].error is None


def test_what_a_process_does_beside_its_work_goes_on_while_it_waits_and_not_while_it_stands_still() -> None:
    world, at = World(1, NOTHING, 0, [Aim("it stands still", "", 1, "long pause")]), list[float]()

    def beat() -> bool:
        at.append(world.now)
        return len(at) < 5

    def works() -> None:
        with world.beside_it("a lease", 1.0, beat):
            world.sleep(3.5)
            world.call("it stands still", lambda: None)
            world.sleep(9.0)

    began = world.now
    actor = world.start("works", works)
    while world.step():
        pass
    # Then it was done every second while that waited, and once more behind the standstill, until it said no
    assert actor.error is None
    assert at[:3] == pytest.approx([began + 1.0, began + 2.0, began + 3.0])
    assert at[3] - at[2] > 8.0
    assert len(at) == 5


def test_a_power_cut_ends_every_process_before_a_successor_starts() -> None:
    world, ended = World(1, NOTHING, 0, [Aim("a write", "", 1, "power")]), list[list[bool]]()
    # Given three processes, one of which sees the power go, and an Airflow that starts whatever has ended again
    actors = [world.start(f"waits {n}", lambda: world.sleep(60.0)) for n in range(2)]
    actors.append(world.start("writes", lambda: world.call("a write", lambda: None)))
    world.on_power = lambda: ended.append([actor.ended for actor in actors])
    while world.step():
        if len(actors) == 3 and any(actor.ended for actor in actors) and not ended:
            actors.append(world.start("a successor", lambda: world.sleep(60.0)))
    # Then the machine starts again when all had ended, and before there was a successor
    assert ended == [[True, True, True]]


def test_a_file_that_another_process_made_durable_meanwhile_survives_a_power_cut(tmp_path: Path) -> None:
    world, disk, path = (
        World(1, NOTHING, 0, [Aim("create", "late", 1, "long pause")]),
        Disk(tmp_path),
        tmp_path / "file",
    )

    def make(content: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if content:
            os.pwrite(fd, content, 0)
            os.fsync(fd)
            folder = os.open(tmp_path, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        os.close(fd)

    def quick() -> None:
        world.sleep(1.0)
        make(b"confirmed")

    # Given a process that found no file and stands still before it creates one, and another that writes it meanwhile
    with faulty(world, disk):
        world.start("late", lambda: make(b""))
        world.start("quick", quick)
        while world.step():
            pass
    assert [line.split()[1] for line in world.history if "create" in line and "***" not in line] == ["late:", "quick:"]
    # When the power is cut
    disk.lose()
    # Then what was durable is there
    assert path.read_bytes() == b"confirmed"


def test_names_and_orders_come_from_the_seed_alone(tmp_path: Path) -> None:
    def lived(seed: int) -> list[Any]:
        world, seen = World(seed, NOTHING, 0, trace=True), list[Any]()

        def look() -> None:
            folder = tmp_path / "many"
            for n in range(6):
                (folder / str(n)).mkdir(parents=True)
            seen.extend([os.listdir(folder), [e.name for e in os.scandir(folder)], os.getpid()])
            seen.extend([uuid.uuid4(), secrets.token_hex(4)])
            shutil.rmtree(folder)

        with faulty(world, Disk(tmp_path)):
            actor = world.start("looks", look)
            while world.step():
                pass
        if actor.error is not None:
            raise actor.error
        return [*seen, *world.history]

    assert lived(1) == lived(1)
    assert lived(1)[0] != lived(2)[0]
    assert sorted(lived(1)[0]) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(("patience", "explained"), [(0.0, 1), (60.0, 0)])
def test_an_answer_that_came_too_late_explains_a_second_send(
    patience: float, explained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a receiver that has taken a record, and whose sender gives it up before it has answered
    memory = receiver.Memory(Random(1), slow=60.0)
    monkeypatch.setattr(memory.random, "uniform", lambda *_: 0.0 if not memory.taken else 1.0)
    monkeypatch.setattr(receiver, "memory", memory)
    monkeypatch.setattr(receiver, "TIMEOUT", patience)

    async def given_up() -> None:
        send = asyncio.create_task(receiver.Remembering({}).send(Record(b"1", after={"s": "a", "n": 0})))
        # It is taken at the second turn, and answered by the third at the earliest.
        for _ in range(3):
            await asyncio.sleep(0)
        assert memory.taken
        send.cancel()
        await asyncio.gather(send, return_exceptions=True)

    asyncio.run(given_up())
    # Then that explains a second send only where its sender had waited for as long as it may
    assert memory.lost_answers == explained


def test_who_is_no_process_has_the_worlds_clock_too(redis_server: RedisServer, tmp_path: Path) -> None:
    # Given an operator who calls a script of the broker before any process did
    world = World(1, NOTHING, 0)
    client = redis.Redis(unix_socket_path=str(redis_server.socket), decode_responses=True)
    client.flushall()
    broker = Broker("verified", client)
    with faulty(world, Disk(tmp_path)):
        first = broker.leases.acquire("destinations.a", "one")
        world.now += 3_600
        # Then it is given the world's time, and the lease has lapsed when that has passed
        second = broker.leases.acquire("destinations.a", "two")
    client.close()
    assert (first.token, second.token) == (1_700_001_000_000_000, 1_700_004_600_000_000)


@pytest.mark.slow
def test_every_clock_that_a_history_reads_is_the_worlds() -> None:
    """A clock that is kept as a value, as in `default_factory=time.monotonic`, is the machine's own in every seed: what
    is lived would depend on how long the machine has been up."""
    kept = []
    root = Path(conduit_tasks.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if not path.is_relative_to(root / "verify"):
            kept += [f"{path.relative_to(root)}:{found}" for found in kept_clocks(ast.parse(path.read_text()))]
    assert kept == []


def kept_clocks(tree: ast.Module) -> list[str]:
    """Where a clock is taken as a value when the module is imported, or imported by its own name: line and source."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    # What a function does is done when it is called; its defaults are taken before.
    later = {id(n) for f in functions for line in f.body for n in ast.walk(line)}
    later |= {id(n) for f in ast.walk(tree) if isinstance(f, ast.Lambda) for n in ast.walk(f.body)}
    found: list[ast.expr | ast.stmt] = [
        n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) in CLOCKS and id(n) not in later
    ]
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    found += [n for n in imports if any(f"{n.module}.{alias.name}" in CLOCKS for alias in n.names)]
    return [f"{n.lineno} {ast.unparse(n)}" for n in found]


def test_a_process_that_waits_for_itself_ends_the_history_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STUCK", 0.2)
    world, lock = World(1, NOTHING, 0, []), threading.Lock()

    def works() -> None:
        with lock:
            world.call("an operation", lock.acquire)

    world.start("works", works)
    # It is named, and nobody waits for it at the end
    with pytest.raises(RuntimeError, match="works has not come to its next point"):
        list(iter(world.step, False))
    world.end()
    lock.release()
