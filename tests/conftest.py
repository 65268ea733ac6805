"""Shared by all tests: one real Redis, one Spark context, a fresh home folder for each test that wants one."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from conduit_tasks.settings import forget
from tests import scratch
from tests.connect_server import SILENT, ConnectServer
from tests.jvm import OF_A_TEST, quick_options
from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from benchmarks.cluster import Cluster
    from tests.faults.parts import Receiver

DATA = Path(__file__).parent / "data"
SHARED = {"CONDUIT_CLASS_DATA": str(Path(__file__).parents[1] / ".conduit" / "cds")}
"""Homes of tests share the archive from which Spark drivers start: it is built once, not once in each of them."""
os.environ.update(SHARED)
# An example takes as long as the machine lets it: 200 ms, and a second for ten to be drawn, are no promise of ours.
hypothesis_settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("tests")


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """The session's Redis, empty."""
    redis_process.flush()
    return redis_process


@pytest.fixture
def home(tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty installation: `CONDUIT_HOME` with include/pipelines, on the session's Redis."""
    folder = tmp_path / "home"
    (folder / "include" / "pipelines").mkdir(parents=True)
    for name in [n for n in os.environ if n.startswith("CONDUIT_") and n not in SHARED]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CONDUIT_HOME", str(folder))
    monkeypatch.setenv("CONDUIT_REDIS_URL", redis_server.url)
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "3")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.2")
    forget()
    yield folder
    forget()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of all tests."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    options, ours = quick_options()
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.extraJavaOptions", shlex.join(options))
        .config("spark.ui.enabled", "false")
        # Its workers are forked from a process that has loaded what they need, and clear away their own garbage only.
        .config("spark.python.daemon.module", "conduit_tasks.spark.daemon")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    with pytest.MonkeyPatch.context() as patched:
        for name, value in ours.items():
            patched.setenv(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """The one Spark Connect server of all tests: if it is killed, it starts again by itself."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    server.start("--silent", str(SILENT))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def standing_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The one standalone cluster of all tests: a master and two workers, whose executors run this Python."""
    from benchmarks.cluster import standing
    from conduit_tasks.spark import cds

    options, ours = quick_options()
    # What a test says, executors know of by the options of its application.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_TEST)}
    environment = {**inherited, **ours, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(DATA.parents[1])}
    folder = tmp_path_factory.mktemp("cluster")
    with standing(folder, environment, cds.spark_home(), options=options) as found:
        yield found


@pytest.fixture
def cluster(standing_cluster: Cluster) -> Cluster:
    """The cluster of all tests, with both of its workers."""
    standing_cluster.restore()
    return standing_cluster


@pytest.fixture(scope="session")
def refusing_receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """The HTTP receiver of all tests that want one answer of 400, for `{"n": 3}`, and else ask nothing of it."""
    from tests.faults.parts import Receiver

    receiver = Receiver(tmp_path_factory.mktemp("receiver"))
    receiver.arguments = (*receiver.arguments, "--refuse", "n=3")
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[str]:
    """The one Chromium of all tests: the address of its DevTools."""
    from tests.browser import chromium

    with chromium() as address:
        yield address


@pytest.fixture
def connected(connect_server: ConnectServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Has this process's jobs run on the Connect server of all tests; gives a SQL session of it."""
    from conduit_tasks.spark import session
    from conduit_tasks.spark.connect import ConnectExecutors

    for name, value in {**connect_server.environment, "SPARK_CONNECT_MODE_ENABLED": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "_executors", None)
    yield session.session()
    executors = session.executors()
    assert isinstance(executors, ConnectExecutors)
    executors.release()


@pytest.fixture(params=["plain", "connect"])
def anywhere(request: pytest.FixtureRequest) -> Any:
    """A SQL session, and this process's jobs: first in a Spark context of its own, then at a Connect server."""
    return request.getfixturevalue("spark" if request.param == "plain" else "connected")


@pytest.fixture
def no_garbage_collected() -> Iterator[None]:
    """What holds itself stays: only what nobody refers to is gone."""
    gc.disable()
    yield
    gc.enable()


def _compile_first(config: pytest.Config) -> None:
    """Imports the tests in an order of this worker's own, if it is to run all of them: in a fresh checkout each worker
    compiles a share of them, as pytest rewrites them, and finds what others have compiled by then."""
    given = getattr(config, "workerinput", None)
    if given is None or config.args != config.getini("testpaths"):
        return
    modules = sorted(DATA.parent.rglob("test_*.py"))
    first = len(modules) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    for path in modules[first:] + modules[:first]:
        # What goes wrong here goes wrong once more in the collection, which says so.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(DATA.parents[1]).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Any:
    """Collects without a look for garbage, as all of it stays; and keeps tests as pytest rewrites them, wherever Python
    was told to write no compiled modules. Each of the processes saves half of what collecting costs it."""
    told = sys.dont_write_bytecode
    sys.dont_write_bytecode = False
    gc.disable()
    try:
        _compile_first(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = told


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Looks for garbage once. To report what was never closed pytest looks twice, for 3 s each time, in a process that
    has run some thousand tests."""
    gc.collect()
    gc.freeze()


_TOGETHER = {
    "the stack": ("tests/stack/",),
    "Kafka": (
        "tests/connectors/test_kafka",
        "tests/connectors/test_dead_letter_queues",
        "tests/connectors/test_forgotten_acks",
        "tests/connectors/test_poison",
        "tests/connectors/test_together_bulk",
    ),
    "Spark Connect, Spark": (
        "tests/cli/test_doctor",
        "tests/connectors/test_spark",
        "tests/faults/test_connect",
        "tests/faults/test_stop_in_a_worker",
        "tests/micro_batch/test_large_records",
        "tests/micro_batch/test_spark",
        "tests/processors/test_sql",
        "tests/spark/test_connect",
        "tests/spark/test_datasources",
    ),
    "a cluster": (
        "tests/faults/test_stalled_executor",
        "tests/spark/test_standalone",
    ),
    "SQS, S3, Iceberg": (
        "tests/connectors/test_bytes",
        "tests/connectors/test_iceberg",
        "tests/connectors/test_once",
        "tests/connectors/test_s3",
        "tests/connectors/test_shard_files",
        "tests/connectors/test_sqs",
        "tests/connectors/test_verify_queues",
    ),
    "Chromium": (
        "tests/airflow/test_live_page",
        "tests/airflow/test_outage_story",
        "tests/airflow/test_pages",
    ),
    "PostgreSQL": (
        "tests/connectors/test_postgres",
        "tests/connectors/test_schema_",
        "tests/connectors/test_sql",
        "tests/fuzz/test_pgvalues",
    ),
    "MariaDB": ("tests/connectors/test_mysql",),
}
"""What shares a server that is costly to start: one worker has it. Any other file is a group of its own."""
_LONGEST = (
    *_TOGETHER,
    "tests/benchmarks/",
    "tests/at_home/",
    "tests/verify/",
    "tests/spark/",
    "tests/faults/",
    "tests/micro_batch/",
)
"""Groups, and folders, that are begun first, in this order, so that no worker is left alone with them at the end."""


def _group(nodeid: str) -> str:
    """What stays together with this test."""
    return next((g for g, files in _TOGETHER.items() if nodeid.startswith(files)), nodeid.partition("::")[0])


BEHIND = 5
"""Niceness of all tests but the stack's, and of what they start: a third of the CPU of what is as nice as 0."""


@cache
def _step_back() -> None:
    os.nice(BEHIND)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets the worker that has the stack's tests go before the others, which step back once. Nearly all of what those
    tests wait for is done by Airflow: it works, and costs CPU, for as long as they take, and no group takes longer."""
    if "PYTEST_XDIST_WORKER" in os.environ and _group(item.nodeid) != "the stack":
        _step_back()


IDLE: list[Callable[[], None]] = []
"""Ends servers that cost CPU while nobody asks them anything: called once their group of tests has ended. A test of
another group that wants such a server starts it again."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and _group(nextitem.nodeid) != _group(item.nodeid):
        for end in IDLE:
            end()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        group = _group(item.nodeid)
        return next((n for n, begun in enumerate(_LONGEST) if group.startswith(begun)), len(_LONGEST))

    items.sort(key=rank)


class Failures:
    """Names a test that has failed at once, with its error's first line: the rest comes when all have ended, or never,
    if somebody stops them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message.partition("\n")[0][:300] if crash else ""
            self._config.get_terminal_writer().line(f"\nFAILED {report.nodeid} ({report.when}) {said}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Failures(config))
    if (folder := scratch.begin()) is not None:
        # After multiprocessing has removed what it has there
        Finalize(None, shutil.rmtree, [folder, True], exitpriority=-1_000)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `-n`: a file's tests stay together, so that what they start for all of them is started once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Gives others what a worker has left that died; returns the test at which it died, which is not run again.
            xdist gives them groups of which nothing is left, too, and waits for ever for their end."""
            units = self.assigned_work.pop(node)
            left = {group: {name: done for name, done in unit.items() if not done} for group, unit in units.items()}
            died_at = next((name for unit in left.values() for name in unit), None)
            for unit in left.values():
                unit.pop(died_at, None)
            self.workqueue.update({group: unit for group, unit in left.items() if unit})
            for other in self.assigned_work:
                self._reschedule(other)
            return died_at

    return ByFile(config, log)
