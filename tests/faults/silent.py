"""Calls to a server that takes connections and never answers: connectors, a processor and a handler that make them.

`<home>/hangs` holds the port, and which call waits for an answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import Limit, Position, Slice
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Record
from conduit_tasks.settings import settings

INCLUDE = "from tests.faults.silent import handler, processor\n"
"""A module of the user's with the functions below."""


def hang(call: str) -> None:
    """Waits for an answer that never comes, if this call is to."""
    file = settings().home / "hangs"
    port, _, which = file.read_text().partition(" ") if file.exists() else ("", "", "")
    if which == call:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=60) as asking:
            asking.settimeout(None)
            asking.recv(1)


class Feed(FileSource):
    """A folder of files that has to be asked first."""

    forget_after = 3_600.0

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        hang("plan")
        return super().plan(position, limit)

    def gone(self, position: Position) -> Collection[str]:
        hang("gone")
        return super().gone(position)

    def ack(self, position: Position) -> None:
        hang("ack")


class Messages(Queue, Feed):
    """The same, whose messages are held."""

    hold_every = 0.1

    def hold(self, positions: Sequence[Position], spare: float) -> None:
        hang("hold")


class Sink(FileDestination):
    """A file that has to be asked first, and refuses every record if `<home>/refuses` is there."""

    def write(self, rows: Rows) -> dict[str, Any]:
        hang("write")
        if (settings().home / "refuses").exists():
            raise Refused("not wanted", status=400)
        return super().write(rows)


def processor(record: Record) -> Record:
    """Fails the record n = 0."""
    hang("processor")
    assert isinstance(record.after, dict)
    if record.after["n"] == 0:
        raise ValueError("0 is not wanted")
    return record


def handler(changes: list[Any]) -> None:
    hang("handler")


def register() -> None:
    """Makes these plugins known in this process, for good."""
    registry.BUILTIN.update(PLUGINS)


PLUGINS = {"silent": __name__, "queue": "tests.faults.silent_queue"}
SOURCE, DESTINATION = Feed, Sink


@dataclass
class Server:
    """Takes connections, and answers with an HTTP status, or never."""

    status: int | None = 200
    asked: threading.Event = field(default_factory=threading.Event)
    """Set once a connection waits for an answer that never comes."""
    _taken: list[socket.socket] = field(default_factory=list)
    _listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def silence(self, home: Path, call: str) -> None:
        """Answers no more; this call of the ones above waits for an answer."""
        self.status = None
        (home / "hangs").write_text(f"{self.port} {call}")

    def serve(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self._taken.append(taken)
            if self.status is None:
                self.asked.set()
            else:
                threading.Thread(target=self._answer, args=(taken, self.status), daemon=True).start()

    def _answer(self, taken: socket.socket, status: int) -> None:
        taken.settimeout(60)
        said = b""
        while b"\r\n\r\n" not in said and (some := taken.recv(1 << 16)):
            said += some
        taken.sendall(f"HTTP/1.1 {status} Said\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        taken.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in (self._listening, *self._taken):
            each.close()


@contextmanager
def serving() -> Iterator[Server]:
    """Runs a server in a thread."""
    server = Server()
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.close()
