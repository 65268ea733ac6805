"""Whatever waits for something outside this process has a limit; docs/operations.md says which."""

from __future__ import annotations

import ast
import asyncio
import fcntl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conduit_tasks import waits
from conduit_tasks.connectors.base import Outcome
from conduit_tasks.connectors.batcher import Batcher
from conduit_tasks.errors import BrokerUnavailable, Unavailable
from conduit_tasks.gateway import commit
from conduit_tasks.gateway.commit import Committer, Health
from conduit_tasks.gateway.store import Budget
from conduit_tasks.record.record import Record

PACKAGE = Path(waits.__file__).parent
ELSEWHERE = ("verify", "demo")
"""They break things on purpose, or show them; nobody's deliveries wait for them."""
WITHOUT_ARGUMENTS = {"join", "get", "result", "wait", "acquire", "communicate", "recv", "accept"}
"""Methods that wait for ever where they are given nothing."""
WITH_TIMEOUT = {"run", "check_call", "check_output", "call", "urlopen", "create_connection", "Client", "AsyncClient",
                "ClientSession", "list_topics", "list_offsets", "poll", "consume"}  # fmt: skip
WITH = {
    "flock": "LOCK_NB",
    "create_engine": "connect_args",
    "from_url": "options",
    "shutdown": "wait=False",
    "commit": "asynchronous=True",
}
"""What a call of this name has to hold."""
KNOWN = {
    ("airflow/forked.py", "self.poll()"): "looks, and does not wait",
    ("airflow/forked.py", "self.wait()"): "it was killed",
    ("airflow/hook.py", "spare.wait()"): "it has closed its output",
    ("airflow/hook.py", "self._submit_sp.poll()"): "looks, and does not wait",
    ("trial/__main__.py", "demo.poll()"): "looks, and does not wait",
    ("trial/__main__.py", "demo.wait()"): "a trial that is watched",
    ("cli/metrics.py", "stop.wait()"): "until it is asked to end",
    ("connectors/kafka/group.py", "self.consumer.commit(…asynchronous=False)"): "librdkafka's own",
    ("connectors/http/client.py", "loop.create_connection(…)"): "within the sender's timeout",
    ("connectors/table_destination.py", "sa.create_engine(…)"): "connects by mysql.client or postgres.client",
    ("connectors/standalone/process.py", "self._child.poll()"): "looks, and does not wait",
    ("connectors/standalone/process.py", "self._watcher.poll()"): "looks, and does not wait",
    ("connectors/singer/guard.py", "child.wait()"): "its reader ends the guard, and with it the child",
    ("connectors/singer/process.py", "select.poll()"): "makes an object that is asked with a limit",
    ("dead_letters/plugin.py", "self._calls.get()"): "a worker between two calls",
    ("delivery/ahead.py", "self._room.wait()"): "the watchdog of the delivery",
    ("delivery/record_wise.py", "self._turns.wait()"): "the watchdog of the delivery",
    ("delivery/record_wise.py", "self._due.wait()"): "the watchdog of the delivery",
    ("delivery/retry.py", "state.outcome.result()"): "it has ended",
    ("airflow/api/records.py", "_places.acquire(…)"): "blocking=False",
    ("metrics/prometheus.py", "server.shutdown()"): "it looks twice a second",
    ("metrics/prometheus.py", "thread.join()"): "its server has ended",
    ("operate/apart.py", "process.communicate()"): "it was killed, and its output goes to files",
    ("gateway/serve.py", "self._pool.shutdown()"): "calls of Redis and writes of files, which have their own",
    ("metrics/otlp.py", "self._sender.shutdown()"): "the exporter's own timeout",
    ("gateway/accept.py", "protocol.ended.wait()"): "the protocol ends who is silent",
    ("gateway/accept.py", "super(…).shutdown(…)"): "uvicorn's own, which has `timeout_graceful_shutdown`",
    ("gateway/protocol.py", "super(…).shutdown()"): "it asks the connection to end and does not wait",
    ("gateway/serve.py", "health.changed.wait()"): "until there is something to do",
    ("connectors/http/guard.py", "_ends.get()"): "a context variable",
    ("logs.py", "_about.get()"): "a context variable",
    ("micro_batch/halting.py", "_end.get()"): "a context variable",
    ("cli/output.py", "printed.get()"): "no wait",
    ("delivery/isolated.py", "child.wait()"): "it has said its last word",
    ("processors/http_calls.py", "room.acquire()"): "requests within their own timeout",
    ("processors/http_calls.py", "asyncio.run_coroutine_threadsafe(…).result()"): "requests within their own timeout",
    ("spark/pieces.py", "fcntl.flock(…)"): "against a look that takes microseconds",
    ("spark/jvm.py", "_jvm.process.poll()"): "looks, and does not wait",
    ("spark/local.py", "select.poll()"): "no wait",
    ("spark/server.py", "child.poll()"): "looks, and does not wait",
    ("spark/datasource_write.py", "TaskContext.get()"): "no wait",
    ("spark/remote.py", "socket.create_connection(…)"): "its second argument",
}  # fmt: skip
"""What looks like a wait without a limit → why it is none."""


def unlimited(file: Path) -> Iterator[str]:
    """Calls in a file that may wait for ever, written without their arguments."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {keyword.arg for keyword in node.keywords}
        if name in WITHOUT_ARGUMENTS:
            bad = not node.args and "timeout" not in named
        elif name in WITH_TIMEOUT:
            process = isinstance(owner, ast.Name) and owner.id in ("subprocess", "urllib", "httpx", "aiohttp", "socket")
            kafka = name in ("list_topics", "list_offsets")
            bad = (process or kafka or name == "create_connection") and not named & {"timeout", "request_timeout"}
            bad = bad or (name == "poll" and not node.args)
        elif name == "commit":
            bad = "asynchronous=False" in ast.unparse(node)
        else:
            bad = name in WITH and WITH[name] not in ast.unparse(node)
        if bad:
            inner = f"{ast.unparse(owner.func)}(…)" if isinstance(owner, ast.Call) else owner and ast.unparse(owner)
            said = "" if not (node.args or node.keywords) else "…asynchronous=False" if name == "commit" else "…"
            yield f"{inner}.{name}({said})" if inner else f"{name}({said})"


def test_no_wait_is_without_a_limit() -> None:
    found = {
        (str(file.relative_to(PACKAGE)), call)
        for file in PACKAGE.rglob("*.py")
        if file.relative_to(PACKAGE).parts[0] not in ELSEWHERE
        for call in unlimited(file)
    }
    assert found - KNOWN.keys() == set(), "give it a limit (waits.py), or say here why it needs none"
    assert KNOWN.keys() - found == set(), "these are gone"


@pytest.mark.parametrize(
    "line",
    ["thread.join()", "queue.get()", "future.result()", "event.wait()", "lock.acquire()", "process.communicate()",
     "subprocess.run(['a'], check=True)", "fcntl.flock(file, fcntl.LOCK_EX)", "socket.create_connection(where)",
     "urllib.request.urlopen(url)", "httpx.Client(base_url=url)", "sa.create_engine(url)", "producer.list_topics('t')",
     "consumer.commit(offsets=o, asynchronous=False)", "pool.shutdown()", "pool.shutdown(wait=True)"],
)  # fmt: skip
def test_a_wait_without_a_limit_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "new.py").write_text(line)
    if "urlopen" in line:
        (tmp_path / "new.py").write_text("urllib.urlopen(url)")
    assert list(unlimited(tmp_path / "new.py"))


def test_a_file_that_somebody_keeps_locked_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as other, (tmp_path / "f").open("w") as file:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"f locked for 0\.05 s"):
            waits.lock(file, 0.05)
        fcntl.flock(other, fcntl.LOCK_UN)
        waits.lock(file, 0.05)


def sent(batcher: Batcher, count: int) -> list[asyncio.Task[Outcome]]:
    return [asyncio.ensure_future(batcher.send(Record(b"%d" % n))) for n in range(count)]


@pytest.mark.proves("T5")
def test_senders_whose_exchange_raises_hear_of_it_at_once() -> None:
    async def broken(_: list[Record]) -> Outcome:
        raise Unavailable("no such thing")

    async def run() -> list[Outcome | BaseException]:
        batcher = Batcher(broken, 3, 60.0)
        return await asyncio.wait_for(asyncio.gather(*sent(batcher, 3), return_exceptions=True), 10)

    assert [str(each) for each in asyncio.run(run())] == ["no such thing"] * 3


@pytest.mark.proves("T5")
def test_what_waits_in_a_batch_that_is_closed_hears_of_it_at_once() -> None:
    async def run() -> list[Outcome | BaseException]:
        begun = asyncio.Event()

        async def silent(_: list[Record]) -> Outcome:
            begun.set()
            await asyncio.sleep(3600)
            raise AssertionError

        # Given two records on their way and one that waits for others
        batcher = Batcher(silent, 2, 60.0)
        tasks = sent(batcher, 3)
        await begun.wait()
        # When it is closed, then none of the three waits any longer
        await asyncio.wait_for(batcher.close(), 10)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert [str(e) for e in asyncio.run(run())] == ["closed while it was sent"] * 2 + ["closed before it was sent"]


@pytest.mark.proves("I1")
def test_producers_are_told_to_come_back_where_the_disk_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "ANSWER", 0.05)
    answers = threading.Event()

    def hanging(*_: object) -> list[str | None]:
        answers.wait(30)
        return ["1-1"]

    async def run(pool: ThreadPoolExecutor) -> None:
        health = Health()
        committer = Committer(hanging, Budget(10, 1 << 20), pool, health)
        with pytest.raises(BrokerUnavailable, match="not known after"):
            await asyncio.wait_for(committer.store(1, b"x"), 10)
        assert health.away
        await committer.drain()

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(run(pool))
        answers.set()
