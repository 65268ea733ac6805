"""A Redis that fsyncs before it answers, and the gateway as a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.gateway.event import split
from conduit_tasks.gateway.store import IngestStore
from conduit_tasks.redis_client.connection import Client, connect
from conduit_tasks.settings import Settings, forget
from tests.forked import CONDUIT, ROOT, Program
from tests.redis_server import RedisServer
from tests.waiting import until

TOKEN = "correct-horse"
PIPELINE = """
version: "2.2"
pipelines:
  - id: {id}
    connectors:
      - id: web
        type: source
        plugin: gateway
        settings: {settings}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl}}}}
"""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        return problem


@dataclass
class GatewayProcess:
    """`conduit gateway` on a free port, forked from a process that has loaded it; can be killed and started again."""

    home: Path
    redis_url: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: Program | None = None
    url: str = ""

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The command line, and its environment, of a Python that runs it."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CONDUIT_")}
        env |= {"CONDUIT_HOME": str(self.home), "CONDUIT_REDIS_URL": self.redis_url, "WEB_TOKEN": TOKEN}
        argv = [sys.executable, str(CONDUIT), "gateway", "--port", "0", *self.options]
        return argv, {**env, "PYTHONPATH": str(ROOT), **self.environment}

    def start(self) -> GatewayProcess:
        argv, env = self.command()
        seen = self.log.stat().st_size if self.log.exists() else 0
        self.process = Program(argv[1:], env, self.home, self.log)
        try:
            until(lambda: self._listens(seen) or self._ended())
        except AssertionError:
            self.process.kill()
        assert self._listens(seen), self.log.read_text()
        return self

    def refuses(self) -> str:
        """What it says where it does not serve, but ends with exit code 1."""
        argv, env = self.command()
        assert Program(argv[1:], env, self.home, self.log).wait(240) == 1
        return self.log.read_text()

    def _ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _listens(self, seen: int) -> bool:
        """Whether its log beyond so many bytes says where it listens. Where tokens are Airflow's, that says something
        too."""
        said = self.log.read_bytes()[seen:].decode() if self.log.exists() else ""
        if found := re.search(r"^listening on (\S+).*\n", said, re.MULTILINE):
            self.url = found[1].partition("/ingest/")[0]
        return bool(found)

    @property
    def log(self) -> Path:
        return self.home / "gateway.log"

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(240)

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Answer:
        """Raises OSError if there is no answer, or not all of one."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}), **more)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except http.client.HTTPException as error:  # killed in the middle of it
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def post(self, body: Any, *, path: str = "/ingest/p/web", type: str = "application/json", **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": type, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.request("POST", path, data, sent)


def event(n: int, **attributes: Any) -> dict[str, Any]:
    """A CloudEvent in JSON with number `n`."""
    return {"specversion": "1.0", "id": f"e{n}", "source": "/test", "type": "made", "data": {"n": n}, **attributes}


def write_pipeline(home: Path, id: str = "p", **settings: Any) -> None:
    folder = home / "include" / "pipelines"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"auth": "none", **{k.replace("_", "-"): v for k, v in settings.items()}}
    side = folder / f"{id}.side"
    side.write_text(PIPELINE.format(id=id, settings=json.dumps(settings)))
    side.rename(folder / f"{id}.yaml")


@pytest.fixture(scope="session")
def fsyncing_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("fsyncing"))
    server.start("--appendfsync", "always")
    yield server
    server.kill()


@pytest.fixture
def fsyncing(fsyncing_process: RedisServer) -> RedisServer:
    """A Redis with `appendfsync always`, empty."""
    fsyncing_process.flush()
    return fsyncing_process


@pytest.fixture
def gateway_home(home: Path, fsyncing: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose Redis is `fsyncing`."""
    monkeypatch.setenv("CONDUIT_REDIS_URL", fsyncing.url)
    forget()
    return home


@pytest.fixture
def serving(gateway_home: Path, fsyncing: RedisServer) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts a gateway for the pipelines of the home, with options of `conduit gateway`."""
    started: list[GatewayProcess] = []

    def start(*options: str, **environment: str) -> GatewayProcess:
        started.append(GatewayProcess(gateway_home, fsyncing.url, options, environment).start())
        return started[-1]

    yield start
    for process in started:
        if process.process is not None and process.process.poll() is None:
            process.kill()


@pytest.fixture
def client(fsyncing: RedisServer) -> Iterator[Client]:
    client = connect(Settings(redis_url=fsyncing.url), raw=False)
    yield client
    client.close()


@pytest.fixture
def raw_client(fsyncing: RedisServer) -> Iterator[Client]:
    client = connect(Settings(redis_url=fsyncing.url), raw=True)
    yield client
    client.close()


@pytest.fixture
def stored(fsyncing: RedisServer) -> Callable[..., list[bytes]]:
    """The events that a source holds, packed, in order."""

    def read(pipeline: str = "p", source: str = "web") -> list[bytes]:
        client = connect(Settings(redis_url=fsyncing.url), raw=True)
        try:
            store = IngestStore(pipeline, source, client)
            entries: Any = client.xrange(store.keys.ingest(source))
            return [event for _, fields in entries for event in split(fields[b"e"])]
        finally:
            client.close()

    return read
