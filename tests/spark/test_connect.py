"""Sessions at a Spark Connect server: found again, told apart, warm; without a server."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import pytest

from conduit_tasks.errors import SparkLost
from conduit_tasks.spark.connect import RETRIES, first_open
from tests.waiting import until


@pytest.mark.parametrize("closed", [0, 1, 2, 3, 7, 8, 100, 1_000])
def test_the_first_session_that_is_not_closed_is_found_in_few_steps(closed: int) -> None:
    asked: list[int] = []

    def connect(number: int) -> int | None:
        asked.append(number)
        return number if number >= closed else None

    assert first_open(connect) == closed
    assert len(asked) <= 2 + 2 * closed.bit_length()


def test_a_server_that_closes_every_session_is_no_endless_search() -> None:
    with pytest.raises(SparkLost, match="takes no session"):
        first_open(lambda number: None)


@pytest.mark.proves("C9", "C10")
def test_a_server_that_does_not_answer_is_given_up_within_ten_seconds() -> None:
    # By the client's own account: what a loaded machine takes beside it is not its promise
    from pyspark.sql.connect.client.retries import DefaultPolicy

    asked = DefaultPolicy(**RETRIES).to_state()  # type: ignore[arg-type]
    waits = list(islice(iter(asked.next_attempt, None), 1_000))
    assert 3_000 < sum(waits) < 10_000


@pytest.mark.slow
def test_a_session_is_found_again_by_the_next_process_and_another_one_taken_once_it_is_closed(connected: Any) -> None:
    from conduit_tasks.spark import session
    from conduit_tasks.spark.connect import ConnectExecutors

    # Given a pipeline's session, and that of another one
    first = session.executors()
    assert isinstance(first, ConnectExecutors)
    url = str(first.address)

    def session_of(pipeline: str) -> tuple[str, list[int]]:
        executors = ConnectExecutors(url, pipeline, "sources.in")
        answers = executors.run_all(abs, [-1, -2, -3])
        [own] = executors._sessions.values()
        return own.session_id, answers

    a, answers = session_of("a")
    assert answers == [1, 2, 3]
    # Then the next process finds it, and pipelines have one each
    assert session_of("a")[0] == a
    assert session_of("b")[0] != a
    # When the server closes it, as after an idle day, the next process has another one, and finds that again
    executors = ConnectExecutors(url, "a", "sources.in")
    executors.run_all(abs, [1])
    executors.release()
    again, answers = session_of("a")
    assert again != a
    assert answers == [1, 2, 3]
    assert session_of("a")[0] == again


def test_the_default_parallelism_is_that_of_the_server_and_is_asked_once(
    connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.spark import session
    from conduit_tasks.spark.connect import ConnectExecutors

    own = session.executors()
    assert isinstance(own, ConnectExecutors)
    executors = ConnectExecutors(str(own.address), "a", "destinations.to")
    cores = str(executors.session().conf.get("spark.master")).removeprefix("local[").split(",")[0].removesuffix("]")
    assert executors.parallelism() == int(cores)
    monkeypatch.setattr(executors, "_session", None)
    assert executors.parallelism() == int(cores)


def test_a_wrong_token_is_named_as_what_it_is(connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.errors import ConfigError
    from conduit_tasks.spark import session
    from conduit_tasks.spark.connect import ConnectExecutors

    executors = session.executors()
    assert isinstance(executors, ConnectExecutors)
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "another")
    with pytest.raises(ConfigError, match="does not take the token"):
        ConnectExecutors(str(executors.address), "a", "n").run_all(abs, [1])


@pytest.mark.slow
def test_an_error_of_the_work_is_told_as_before_and_leaves_the_session_usable(connected: Any) -> None:
    from pyspark.errors import PythonException

    from conduit_tasks.spark.session import run_all

    def divide(n: int) -> float:
        return 1 / n

    with pytest.raises(PythonException, match="ZeroDivisionError"):
        run_all(divide, [1, 0])
    assert run_all(divide, [2, 1]) == [0.5, 1.0]


@pytest.mark.slow
def test_a_worker_has_loaded_what_it_needs_before_its_first_job_and_collects_little_garbage(connected: Any) -> None:
    from conduit_tasks.spark.session import executors

    def loaded(_: Any) -> tuple[set[str], int, int]:
        import gc
        import sys

        return set(sys.modules), gc.get_freeze_count(), len(gc.get_objects())

    ((first, _, _),), ((then, frozen, left),) = (executors().run_all(loaded, [0]) for _ in range(2))
    assert then - first == set()
    # It looks through the rest after every task
    assert left < frozen / 50


@pytest.mark.slow
def test_what_workers_log_is_in_the_log_of_the_task(connected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    from conduit_tasks import logs
    from conduit_tasks.spark.session import run_all

    def work(n: int) -> int:
        logging.getLogger("conduit_tasks.x").info("piece %d", n)
        return n

    with logs.about(pipeline="p", node="sources.s"):
        assert run_all(work, [1, 2]) == [1, 2]
    found = [line for line in capsys.readouterr().err.splitlines() if "conduit_tasks.x: piece" in line]
    assert [line.partition("piece ")[2] for line in found] == [
        "1 [pipeline=p node=sources.s]",
        "2 [pipeline=p node=sources.s]",
    ]


def test_what_a_killed_predecessor_left_is_interrupted_by_the_first_job_of_its_node_and_by_no_other(
    connected: Any,
) -> None:
    from conduit_tasks.spark import session
    from conduit_tasks.spark.connect import ConnectExecutors
    from conduit_tasks.spark.pieces import nobody_at as _nobody_at

    own = session.executors()
    assert isinstance(own, ConnectExecutors)

    def of(node: str) -> ConnectExecutors:
        return ConnectExecutors(str(own.address), "a", node)

    # Given a job that a driver waits for no longer
    left, ended = of("sources.in"), list[BaseException]()

    def work() -> None:
        try:
            left.run_all(time.sleep, [120])
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: left._lock is not None and not _nobody_at(left._lock), "the job to begin")
    # When another node's driver begins, or its own in the run that is to take over makes itself ready, it goes on
    assert of("sources.other").run_all(abs, [-1]) == [1]
    of("sources.in").warm()
    thread.join(3)
    assert thread.is_alive()
    assert left._lock is not None
    assert not _nobody_at(left._lock)
    # When its node's next one begins, it is ended, its worker with it
    assert of("sources.in").run_all(abs, [-1]) == [1]
    thread.join(240)
    assert "cancel" in str(ended[0]).lower()
    until(lambda: left._lock is not None and _nobody_at(left._lock), "its worker to end")
