"""A driver that is asked to end while its Spark is still being made."""

from __future__ import annotations

import signal

import pytest
from pyspark import SparkContext

from conduit_tasks.errors import Terminated
from conduit_tasks.spark import ended, plain, session
from conduit_tasks.spark.plain import PlainExecutors


@pytest.mark.proves("C15")
def test_a_driver_that_is_asked_to_end_before_its_context_is_there_begins_no_job_and_gives_its_lease_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a context that is known while it is being made, as Spark's is
    monkeypatch.setattr(ended, "_halting", ended._Halting())
    monkeypatch.setattr(session, "_executors", PlainExecutors())
    monkeypatch.setattr(SparkContext, "_active_spark_context", SparkContext.__new__(SparkContext))

    monkeypatch.setattr(ended.os, "_exit", lambda _: None)

    class Context:
        def parallelize(self, *_: object) -> None:
            pytest.fail("a job is begun")

    def made() -> Context:
        signal.raise_signal(signal.SIGTERM)
        assert ended._halting.thread is not None
        ended._halting.thread.join(240)
        return Context()

    monkeypatch.setattr(plain, "context", made)
    # Then nothing is at work, and no job is begun
    with pytest.raises(Terminated) as raised, ended.ending_in_order():
        session.run_all(abs, [1])
    assert not raised.value.busy
