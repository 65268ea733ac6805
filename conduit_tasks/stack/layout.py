"""Files and folders of the embedded stack: everything below `<home>/.conduit`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.private import check_file, make_private, socket_in


@dataclass(frozen=True)
class Layout:
    """The folders of one stack; several stacks may run on a machine, each with a home of its own."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / ".conduit"

    @property
    def airflow(self) -> Path:
        return self.root / "airflow"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def state_file(self) -> Path:
        return self.root / "stack.json"

    @property
    def secrets_file(self) -> Path:
        return self.root / "secrets.json"

    @property
    def passwords_file(self) -> Path:
        return self.airflow / "passwords.json"

    @property
    def socket(self) -> Path:
        """Socket of Redis: next to its data, or in the temporary folder if that path is too long for a socket."""
        return socket_in(self.redis)

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    def prepare(self) -> None:
        """Makes the folders; nobody else can read the private ones."""
        for folder in (self.root, self.airflow, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prepare_redis()

    def prepare_redis(self) -> None:
        """Makes the folders of Redis' data and of its socket; a start of Redis needs both."""
        self.redis.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.socket.parent != self.redis:
            make_private(self.socket.parent)


@dataclass
class Process:
    """A process that we started. `created` (seconds since the epoch) distinguishes it from a later one with the same
    number."""

    pid: int
    created: float


@dataclass
class State:
    """Content of `.conduit/stack.json` (mode 0600): the processes that run, and their addresses.

    `stopped_by_shutdown`: pipelines that only the shutdown stopped; the next `up` starts them again.
    """

    redis_url: str = ""
    api_url: str = ""
    processes: dict[str, Process] = field(default_factory=dict)
    stopped_by_shutdown: list[str] = field(default_factory=list)
    gateway_url: str = ""
    connect_url: str = ""

    @classmethod
    def load(cls, layout: Layout) -> State:
        """Returns the stored state; an empty one if there is none. Raises ConfigError if it may be somebody else's."""
        try:
            check_file(layout.state_file)
            data = json.loads(layout.state_file.read_text())
        except FileNotFoundError:
            return cls()
        data["processes"] = {name: Process(**about) for name, about in data.get("processes", {}).items()}
        return cls(**data)

    def save(self, layout: Layout) -> None:
        write_private(layout.state_file, asdict(self))


def write_private(path: Path, data: Any) -> None:
    """Writes JSON that only the owner can read; whole or not at all."""
    side = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(side, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(data, file, indent=2)
        file.write("\n")
    os.replace(side, path)
