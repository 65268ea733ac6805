"""Where a benchmark works: a folder of its own with a pipeline file, and a real Redis that only it uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

import psutil
import redis

from benchmarks import shared_jvm
from benchmarks.data import write_events
from conduit_tasks.settings import forget
from conduit_tasks.spark import cds
from conduit_tasks.spark.submit import launch
from conduit_tasks.stack.layout import Layout
from conduit_tasks.stack.redis import command

if TYPE_CHECKING:
    from tests.forked import Program

ROOT = Path(__file__).resolve().parents[1]
APPS = Path(__file__).with_name("apps")
PIPELINE = "bench"
SMALL = (
    "benchmarks.apps.drive",
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.connectors.file.lines",
    "conduit_tasks.connectors.file.read",
    "conduit_tasks.connectors.http.connector",
    "conduit_tasks.delivery.record_wise",
    "conduit_tasks.micro_batch.row_pass",
    "conduit_tasks.micro_batch.shard_task",
    "conduit_tasks.processors.registry",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql",
    "tests.forked",
)
"""Modules of what the drivers of a small place are forked from. None opens a connection or starts a thread."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Kept:
    """Servers that benchmarks of small work have one after the other, and what ends them."""

    servers: dict[Callable[..., Any], tuple[Any, ExitStack]] = field(default_factory=dict)
    asked: set[Callable[..., Any]] = field(default_factory=set)

    def end(self, *, idle: bool = False) -> None:
        """Ends all of them; those only that nobody has asked for since the last call, if `idle`."""
        for start in [each for each in self.servers if not idle or each not in self.asked]:
            self.servers.pop(start)[1].close()
        self.asked.clear()


@dataclass(frozen=True)
class Place:
    """`base` is kept from run to run (events, class-data archive); `home` is new for each benchmark. `master`: of its
    Spark drivers, those written by hand as well; `small`: events are so few that Spark need not do what is asked of our
    own driver alone, that HTTP alone tells how several tasks deliver, each of which needs a Spark, and that a server
    need not be new."""

    base: Path
    master: str = "local[*]"
    small: bool = False
    kept: Kept = field(default_factory=Kept)

    @property
    def numbers_of_tasks(self) -> tuple[int, ...]:
        """By how many tasks to deliver to each of many destinations, one after the other."""
        return (1,) if self.small else (1, 2)

    @contextmanager
    def server(self, start: Callable[P, AbstractContextManager[T]], *given: P.args, **named: P.kwargs) -> Iterator[T]:
        """Gives what `start` starts for the block; if the place is small, it is started once, and stays."""
        with ExitStack() as own:
            if not self.small:
                yield own.enter_context(start(*given, **named))
                return
            if start not in self.kept.servers:
                stays = own.enter_context(ExitStack())
                self.kept.servers[start] = stays.enter_context(start(*given, **named)), stays.pop_all()
            self.kept.asked.add(start)
            yield self.kept.servers[start][0]

    def staying(self, *servers: int) -> set[int]:
        """Children of this process that outlive a block of `children`: `servers`, and all that a small place keeps."""
        kept = {process.pid for process in psutil.Process().children()} if self.small else set()
        return {*servers, *kept}

    @property
    def home(self) -> Path:
        return self.base / "home"

    def events(self, count: int) -> Path:
        return write_events(self.base / f"events-{count}.jsonl", count)

    def pipeline(self, *connectors: dict[str, Any], **keys: Any) -> None:
        """Makes the home anew, with one pipeline file."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.write_pipeline(*connectors, **keys)

    def write_pipeline(self, *connectors: dict[str, Any], **keys: Any) -> None:
        """Adds the pipeline file to the home (JSON is YAML)."""
        folder = self.home / "include" / "pipelines"
        folder.mkdir(parents=True, exist_ok=True)
        document = {"version": "2.2", "pipelines": [{"id": PIPELINE, "connectors": list(connectors), **keys}]}
        (folder / "bench.yaml").write_text(json.dumps(document, indent=1))

    @property
    def log(self) -> Path:
        """What the drivers wrote to stderr."""
        return self.base / "stderr.log"

    def out(self, name: str) -> Path:
        return self.home / "out" / name

    def archive(self) -> None:
        """The class-data archive, built at the first need and kept."""
        if cds.ensure(self.base) is None:
            raise SystemExit("no class-data archive could be built; the log above says why")

    def submit(
        self, application: Path, *arguments: str, bare: bool = False, conf: Mapping[str, str] | None = None
    ) -> Submitted:
        """Starts a Spark driver: as our operator does, or (`bare`) as `spark-submit` does by itself."""
        env = self._environment()
        if bare:
            env |= {
                "SPARK_HOME": str(cds.spark_home()),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            argv = [str(cds.spark_home() / "bin" / "spark-submit")]
            options = {"spark.ui.enabled": "false", **(conf or {})}
        else:
            start = launch(self.base, self.master, "client", conf)
            env |= start.env
            argv = list(start.command or [str(cds.spark_home() / "bin" / "spark-submit")])
            options = start.conf
        argv += ["--master", self.master]
        for key, value in options.items():
            argv += ["--conf", f"{key}={value}"]
        argv += [str(application), *arguments]
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `Submitted.wait`
        with self.log.open("ab") as log:
            process = subprocess.Popen(argv, env=env, cwd=self.base, stdout=out, stderr=log)
        return Submitted(f"{application.name} {' '.join(arguments)}", process, out)

    def jvm(self) -> shared_jvm.Jvm | None:
        """The JVM that the jobs of a small place share, started by the first who asks; None if each has its own."""
        if not self.small:
            return None
        with self.server(shared_jvm.running, self.base, self._environment(), self.log) as jvm:
            return jvm

    def job(self, application: Path, *arguments: str, bare: bool = False) -> Submitted:
        """Starts a Spark driver whose start is not what is asked about: if the place is small, without a JVM of its
        own."""
        if (jvm := self.jvm()) is None:
            return self.submit(application, *arguments, bare=bare)
        env = self._environment() | {"PYSPARK_PYTHON": sys.executable}
        told = {f"spark.executorEnv.{key}": value for key, value in env.items() if key.startswith("CONDUIT_")}
        jvm.have({"spark.master": self.master, **told})
        return self._forked(application, *arguments, env={**env, **jvm.environment})

    def call(self, application: Path, *arguments: str) -> Submitted:
        """Starts a driver that needs no Spark, as all that it does is small."""
        much = {"CONDUIT_SMALL_RECORDS": str(10**9), "CONDUIT_SMALL_BYTES": str(10**12)}
        return self._forked(application, *arguments, env=self._environment() | much)

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}

    def _forked(self, application: Path, *arguments: str, env: dict[str, str]) -> Submitted:
        out = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by `Submitted.wait`
        # What the tests have for this; no figure of such a driver says anything.
        from tests.forked import Program

        fork = Program([application, *arguments], env, self.base, Path(out.name), SMALL)
        return Submitted(f"{application.name} {' '.join(arguments)}", fork, out)


@dataclass
class Submitted:
    """A running driver."""

    name: str
    process: subprocess.Popen[bytes] | Program
    out: IO[bytes]

    def wait(self) -> dict[str, Any]:
        """What it printed as `bench {json}`; {} where it printed none. Raises SystemExit where it failed."""
        status = self.process.wait()
        self.out.seek(0)
        said = self.out.read().decode()
        self.out.close()
        if status:
            last = "\n".join(said.splitlines()[-20:])
            raise SystemExit(f"{self.name} ended with {status}; stderr.log in the work folder says why\n{last}")
        found = [line[6:] for line in said.splitlines() if line.startswith("bench {")]
        return json.loads(found[-1]) if found else {}


@contextmanager
def serving(place: Place) -> Iterator[tuple[str, redis.Redis, int]]:
    """A Redis for the block, empty, append-only: (url, client, process id). This process's settings point to it."""
    layout = Layout(place.home)
    process = subprocess.Popen(command(layout), stdout=subprocess.DEVNULL)
    client: redis.Redis = redis.Redis(unix_socket_path=str(layout.socket), decode_responses=True)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        url = f"unix://{layout.socket}"
        with pointing(place.home, url):
            yield url, client, process.pid
    finally:
        client.close()
        process.terminate()
        process.wait()


@contextmanager
def pointing(home: Path, redis_url: str) -> Iterator[None]:
    """For the block this process's settings are those of a home and a Redis."""
    kept = {k: os.environ.get(k) for k in ("CONDUIT_HOME", "CONDUIT_REDIS_URL")}
    os.environ |= {"CONDUIT_HOME": str(home), "CONDUIT_REDIS_URL": redis_url}
    forget()
    try:
        yield
    finally:
        for key, value in kept.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        forget()
