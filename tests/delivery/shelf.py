"""Destinations on disk that refuse what a file beside them says, usable from several processes; and a pipeline to them.

`<path>.refuse` holds the numbers `n` that are refused, as JSON; `<path>.slow` seconds per send.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import DELIVERED, Option, Outcome, RecordDestination, Spec
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.dead_letters.book import Book, LetterEntry, read_book, whole
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import Refused
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings
from tests.micro_batch.harness import write_pipeline

MODULE = __name__


PLUGINS = {"shelf": MODULE, "binder": "tests.delivery.binder"}


@pytest.fixture(autouse=True)
def shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the plugins known; import it into the module of tests."""
    for name, module in PLUGINS.items():
        monkeypatch.setitem(registry.BUILTIN, name, module)


class Shelf(RecordDestination):
    """Record-wise: a line {n, id, pid} per record."""

    spec = Spec("shelf", "", (Option("path", "", required=True),))

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.path = Path(settings().path(self.settings["path"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)

    async def send(self, record: Record) -> Outcome:
        assert isinstance(record.after, dict)
        if slow := beside(self.path, "slow", 0.0):
            await asyncio.sleep(slow)
        n = record.after["n"]
        if n in beside(self.path, "deadly", []):
            os.kill(os.getpid(), signal.SIGKILL)
        if n in beside(self.path, "refuse", []):
            return Outcome("refused", f"{n} is not wanted", 400)
        line = json.dumps({"n": n, "id": record.id, "pid": os.getpid(), "after": record.after}) + "\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line.encode())
        os.close(fd)
        return DELIVERED


class Binder(FileDestination):
    """Batch-wise, with state: the file destination, choosy."""

    def write(self, rows: Rows) -> dict[str, Any]:
        refused = beside(self.path, "refuse", [])
        for record in rows.records():
            assert isinstance(record.after, dict)
            if record.after["n"] in refused:
                raise Refused(f"{record.after['n']} is not wanted", status=400)
        return super().write(rows)


DESTINATION = Shelf


def beside(path: Path, name: str, default: Any) -> Any:
    file = path.with_name(f"{path.name}.{name}")
    return json.loads(file.read_text()) if file.exists() else default


def tell(path: Path, name: str, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.{name}").write_text(json.dumps(value))


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {{max-records: 1000}}
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}
        processors: [{{id: key, plugin: field.set, settings: {{field: .Key, value: "{{{{ .Payload.After.k }}}}"}}}}]
      - id: d
        type: destination
        plugin: {plugin}
        settings: {{path: out/d.jsonl{more}}}
        delivery: {{order-by: key, max-unconfirmed: 4, timeout: 1s, park-keys: {park}}}
        processors: {processors}
"""


class Place:
    """An installation with the pipeline `p` from data/ to out/d.jsonl."""

    def __init__(self, home: Path, plugin: str = "shelf", *, park: bool = False, processors: str = "[]") -> None:
        self.home, self.plugin = home, plugin
        self.out = home / "out/d.jsonl"
        more = ", format: payload" if plugin == "binder" else ""
        text = PIPELINE.format(plugin=plugin, more=more, park=str(park).lower(), processors=processors)
        write_pipeline(home, "p", text)

    def patient(self) -> None:
        """No send is given up because this machine stands still in the middle of it."""
        file = self.home / "include/pipelines/p.yaml"
        file.write_text(file.read_text().replace("timeout: 1s", "timeout: 20s"))

    def feed(self, rows: Sequence[tuple[int, str | None]]) -> None:
        """Records (n, key) into the source."""
        (self.home / "data").mkdir(exist_ok=True)
        with (self.home / "data/a.jsonl").open("a") as file:
            for n, key in rows:
                file.write(json.dumps({"n": n, "k": key}) + "\n")

    def refuse(self, *numbers: int) -> None:
        tell(self.out, "refuse", numbers)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []

    def got(self) -> list[int]:
        """The numbers that arrived, in order."""
        return [row["n"] for row in self.rows()]


def book() -> Book:
    """The dead letters of pipeline `p`."""
    root = settings().path(settings().dead_letters)
    with opened("p", "look") as context:
        return read_book(DeadLetterStore(root, "p"), Marks(root, "p"), context.broker)


def whole_entries() -> list[LetterEntry]:
    """All of them, with their records."""
    return whole(DeadLetterStore(settings().path(settings().dead_letters), "p"), book().entries)


def dies_at(send: Callable[[], object], owner: type, name: str, *leases: str, after: bool) -> int:
    """Sends in a child that ends before, or after, the call of this name; its exit code. The leases lapse."""
    pid = os.fork()
    if pid == 0:
        call = getattr(owner, name)

        def ending(*args: Any, **kwargs: Any) -> Any:
            if after:
                call(*args, **kwargs)
            os._exit(9)

        setattr(owner, name, ending)
        try:
            send()
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with opened("p", "look") as context:
        for lease in leases:
            context.broker.redis.hset(context.broker.keys.lease(lease), "until", "0")
    return code
