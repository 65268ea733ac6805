"""The process of `conduit gateway`: the sources that it serves, by files and tokens as they change, checks of Redis,
and a shutdown that answers all.

The pipeline files are read again when they change, so that a new source is served without a restart; tokens are looked
up again with them, and at least every minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import BrokerUnavailable, ConduitError, ConfigError
from conduit_tasks.gateway.accept import Accepting
from conduit_tasks.gateway.app import Endpoint, Gateway
from conduit_tasks.gateway.commit import Add, Bucket, Committer, Health
from conduit_tasks.gateway.connector import GatewaySource
from conduit_tasks.gateway.durability import Fsync, Mode, check_answers
from conduit_tasks.gateway.journal import Journal, JournaledStore
from conduit_tasks.gateway.limits import DEFAULT, Limits
from conduit_tasks.gateway.metrics import told
from conduit_tasks.gateway.pipe import PipedStore
from conduit_tasks.gateway.protocol import bounded
from conduit_tasks.gateway.store import IngestStore
from conduit_tasks.gateway.tokens import Tokens, resolve, verifier
from conduit_tasks.gateway.verify import Verifier
from conduit_tasks.logs import about
from conduit_tasks.pipeline.load import load_folder, pipeline_files
from conduit_tasks.pipeline.validate import GATEWAY
from conduit_tasks.redis_client.connection import Client, connect
from conduit_tasks.settings import Settings
from conduit_tasks.spool.spool import folder_name
from conduit_tasks.topology import Pipeline, Source

log = logging.getLogger("conduit.gateway")

LOOK = 2.0
"""Seconds between looks at the pipeline files."""
REFRESH = 60.0
"""Seconds after which tokens are looked up again."""
PROBE = 0.5
"""Seconds between looks at a Redis that was away."""
THREADS = 8
"""Sources that store at the same time."""


@dataclass(frozen=True)
class Options:
    """Options of the process. `tls`: certificate and key. `grace`: seconds in which a shutdown answers the requests
    that were taken. `idle`: also start if no pipeline has a source to serve (yet)."""

    host: str
    port: int
    fsync: Fsync = "check"
    tls: tuple[str, str] | None = None
    grace: float = 30.0
    idle: bool = False
    metrics: int = 0
    """Port on the loopback where metrics are served; 0: nowhere."""
    otlp_every: float = 0.0
    """Seconds between two exports of metrics by OTLP; 0: none."""
    limits: Limits = DEFAULT


@dataclass(frozen=True)
class _Found:
    """One gateway source of the pipeline files, with its tokens and what verifies its requests."""

    pipeline: str
    connector: str
    source: GatewaySource
    tokens: Tokens
    verifier: Verifier | None
    journal: Path | None
    """Folder of its journal (`durability: spool`); None without one."""

    @property
    def path(self) -> str:
        return f"/ingest/{self.pipeline}/{self.connector}"


class Service:
    """The gateway, from its start to a signal to stop. Raises ConfigError, NotDurable, BrokerUnavailable if it cannot
    start."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.settings, self.options = settings, options
        # No retries in the client: the committer retries a group under its number, and answers its producers in time.
        self.client: Client = connect(settings, retries=0)
        self.mode: Mode = check_answers(self.client, settings.redis_durability, options.fsync)
        self._pool = ThreadPoolExecutor(THREADS, "store")
        self._committers: dict[str, Committer] = {}
        self._journaled: dict[Path, JournaledStore] = {}
        self._looked: tuple[Any, float] = ((), 0.0)

    def run(self, listening: Callable[[str, list[str]], None]) -> None:
        """Serves until told to stop; calls `listening(url, paths)` once, when it is ready."""
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run(listening))
        finally:
            self._pool.shutdown()
            for store in self._journaled.values():
                store.journal.close()
            self.client.close()

    async def _run(self, listening: Callable[[str, list[str]], None]) -> None:
        gateway = Gateway(Health(), self.options.limits)
        found = await asyncio.to_thread(self._find)
        self._serve_these(gateway, found or [])
        await asyncio.to_thread(self._look)
        if not gateway.endpoints and not self.options.idle:
            raise ConfigError(
                f"no pipeline in {self._folder} has a source with plugin: gateway that can be served; add one, or "
                "start with --wait-for-sources"
            )
        with _bound(self.options) as listener:
            tls = self.options.tls
            config = uvicorn.Config(
                gateway,
                loop="none",
                http=bounded(self.options.limits),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(self.options.grace),
                ssl_certfile=tls and tls[0],
                ssl_keyfile=tls and tls[1],
            )
            server = _Server(config, gateway, self.options.limits)
            watching = [asyncio.create_task(self._watch(gateway)), asyncio.create_task(self._probe(gateway.health))]
            host, port = listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            listening(f"{'https' if tls else 'http'}://{host}:{port}", sorted(gateway.endpoints))
            try:
                with told(gateway, self.options.metrics, self.options.otlp_every):
                    await server.serve(sockets=[listener])
                    for committer in self._committers.values():
                        await committer.drain()
            finally:
                for task in watching:
                    task.cancel()

    @property
    def _folder(self) -> Path:
        return Path(self.settings.path(self.settings.pipelines))

    def _find(self) -> list[_Found] | None:
        """Returns the current gateway sources of the pipeline files; None if nothing has changed."""
        seen = tuple((f.name, s.st_mtime_ns, s.st_size) for f in pipeline_files(self._folder) if (s := f.stat()))
        last, at = self._looked
        if seen == last and time.monotonic() - at < REFRESH:
            return None
        out = []
        for pipeline in load_folder(self._folder).pipelines:
            for source in pipeline.sources:
                if source.plugin != GATEWAY:
                    continue
                try:
                    Broker(pipeline.id, self.client).lifecycle.initialise()
                    built = GatewaySource(source.settings)
                    if source.durability == "spool" and built.pipe is not None:
                        raise ConfigError("durability: spool does not keep what a pipe knows; remove one of the two")
                    journal = self._journal(pipeline, source) if source.durability == "spool" else None
                    verifies = verifier(built.scheme, built.secrets) if built.scheme is not None else None
                    out.append(_Found(pipeline.id, source.id, built, resolve(built.auth), verifies, journal))
                except ConfigError as error:
                    log.error("source %s of pipeline %s is not served: %s", source.id, pipeline.id, error)
        self._looked = (seen, time.monotonic())
        return out

    def _serve_these(self, gateway: Gateway, found: list[_Found]) -> None:
        endpoints: dict[str, Endpoint] = {}
        for one in found:
            try:
                add = self._adding(one)
            except (ConduitError, OSError) as error:
                log.error("source %s of pipeline %s is not served: %s", one.connector, one.pipeline, error)
                self._looked = ((), 0.0)  # It is looked at again soon.
                continue
            committer = self._committers.get(one.path)
            if committer is None:
                # The committer's own task stores a group; it takes these fields of the log along.
                with about(pipeline=one.pipeline, source=one.connector):
                    committer = Committer(add, one.source.budget, self._pool, gateway.health)
                self._committers[one.path] = committer
            committer.add, committer.budget = add, one.source.budget
            committer.hold = one.source.pipe_wait if one.source.pipe else None
            before = gateway.endpoints.get(one.path)
            bucket = before.bucket if before else None
            if (bucket.rate if bucket else None) != one.source.rate:
                bucket = Bucket(one.source.rate) if one.source.rate else None
            endpoints[one.path] = Endpoint(
                one.pipeline, one.source, one.tokens, one.source.webhooks, bucket, committer, one.verifier
            )
        if endpoints.keys() != gateway.endpoints.keys():
            log.info("serving %s", ", ".join(sorted(endpoints)) or "nothing")
        gateway.serve(endpoints)

    def _adding(self, one: _Found) -> Add:
        store = IngestStore(one.pipeline, one.connector, self.client)
        waits, source = self.mode == "waitaof", one.source
        remembered = source.remembered, source.scheme.tolerance if source.scheme is not None else 0.0
        if source.pipe is not None:
            lanes = source.lanes
            return PipedStore(
                store, source.receiver, source.pipe_key, lanes, wait_fsync=waits, remembered=remembered
            ).add
        if one.journal is None:
            return partial(store.add, wait_fsync=waits, remembered=remembered)
        if one.journal not in self._journaled:
            self._journaled[one.journal] = JournaledStore(store, Journal(one.journal), wait_fsync=waits)
        self._journaled[one.journal].remembered = remembered
        return self._journaled[one.journal].add

    def _journal(self, pipeline: Pipeline, source: Source) -> Path:
        root = self.settings.path(pipeline.spool_path or self.settings.spool).removeprefix("file://")
        if "://" in root:
            raise ConfigError(
                f"durability: spool needs a spool on a file system, not {root}: set spool.path or CONDUIT_SPOOL to a "
                "folder, or write durability: redis"
            )
        return Path(root) / folder_name(pipeline.id) / f"gateway.{folder_name(source.id)}"

    def _look(self) -> None:
        """Puts back what Redis has lost of the journals; needed while nobody sends anything."""
        for store in list(self._journaled.values()):
            store.look()

    async def _watch(self, gateway: Gateway) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await asyncio.to_thread(self._look)
                found = await asyncio.to_thread(self._find)
            except (ConduitError, OSError) as error:
                log.warning("journals and pipeline files are looked at again later: %s", error)
                continue
            if found is not None:
                self._serve_these(gateway, found)

    async def _probe(self, health: Health) -> None:
        """Checks a Redis that was away for its durability again: it may have come back as another server."""
        while True:
            await health.changed.wait()
            await asyncio.sleep(PROBE)
            try:
                mode = await asyncio.to_thread(
                    check_answers, self.client, self.settings.redis_durability, self.options.fsync
                )
                if mode != self.mode:
                    raise BrokerUnavailable(f"Redis keeps events differently now ({mode}, not {self.mode}); restart")
            except ConduitError as error:
                health.lost(str(error))
                continue
            health.changed.clear()
            health.back()


class _Server(Accepting):
    """Server that ends with exit code 0 when it was asked to stop, and shows at /readyz meanwhile that it stops."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, limits: Limits) -> None:
        super().__init__(config, limits)
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._gateway.stopping = True
        super().handle_exit(sig, frame)
        # uvicorn would raise the signal again in the end, and that would end the process.
        self._captured_signals.clear()


@contextmanager
def _bound(options: Options) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {options.host} port {options.port}: {error.strerror}") from None
    with listener:
        yield listener
