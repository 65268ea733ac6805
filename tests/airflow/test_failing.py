"""Failed tasks are issues: by Airflow's own callbacks of the DAGs' tasks, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.sdk.execution_time import task_runner
from typer.testing import CliRunner

from conduit_tasks.airflow import tasks
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.failing import LONGEST, NodeFailed, clipped
from conduit_tasks.airflow.group import ConduitPipeline
from conduit_tasks.broker.issues import FailedTasks
from conduit_tasks.cli.main import app
from conduit_tasks.errors import BrokerUnavailable, Fenced, PipelineStopped, SourceError
from tests.airflow.api_client import airflow, api, broker_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "api"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    isolate: true
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.txt}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "http://localhost:1/", auth.bearer: hush-hush-key, headers.x-api-key: sesame-open}
      - {id: "log:b", type: destination, plugin: log, on-delivered: {asset: each}}
"""
FAILED, AGAIN, WELL = TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY, TaskInstanceState.SUCCESS


@pytest.fixture
def pipeline(home: Path) -> str:
    write_pipeline(home, "p", PIPELINE)
    return "p"


def end(
    id: str, state: TaskInstanceState, error: Any = None, *, attempt: int = 1, dag: str = "p", run: str = "r"
) -> None:
    """What Airflow does when an attempt at a task has ended."""
    (found,) = load_dags(dag)
    task = found.get_task(id)
    ti = SimpleNamespace(
        task=task,
        **{"dag_id": dag, "run_id": run, "task_id": id, "map_index": -1, "try_number": attempt},
        **{"start_date": None, "end_date": None, "stats_tags": {}},
    )
    task.operator_extra_links = ()
    context: Any = {"ti": ti, "run_id": run, "params": {}, **({"exception": error} if error else {})}
    task_runner.finalize(ti, state, context, structlog.get_logger(), error)  # type: ignore[arg-type]


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as found:
        return found


def failing() -> list[FailedTasks]:
    return sorted(broker_of("p").issues.failing().values(), key=lambda of: of.first)


def test_every_task_of_both_dags_is_watched(pipeline: str) -> None:
    """Given a pipeline's DAGs, then every task that may fail says so, as the node that it is."""
    (dag,), (resend,) = load_dags("p"), load_dags("p.resend")
    told = {}
    for task in [*dag.tasks, *resend.tasks]:
        if task.task_type == "EmptyOperator":
            continue
        for callbacks in (task.on_retry_callback, task.on_failure_callback, task.on_success_callback):
            (callback,) = [c for c in callbacks if getattr(c, "keywords", {}).get("pipeline_id") == "p"]  # type: ignore[union-attr]
            told.setdefault(f"{task.dag_id}/{task.task_id}", set()).add(callback.keywords["node"])  # type: ignore[union-attr]
    assert told == {
        "p/plan": {"plan"},
        "p/sources.in": {"sources.in"},
        "p/destinations.web": {"destinations.web"},
        "p/destinations.log_b-3ddbac62": {"destinations.log:b"},
        "p/acks.in": {"acks.in"},
        "p/steps.log_b-3ddbac62": {"steps.log:b"},
        "p.resend/plan": {"resend/plan"},
        "p.resend/redrive": {"resend/redrive"},
        "p.resend/destinations.web": {"resend/destinations.web"},
        "p.resend/destinations.log_b-3ddbac62": {"resend/destinations.log:b"},
    }


def test_a_dag_written_by_hand_keeps_its_own_callbacks(pipeline: str) -> None:
    def mine(context: Any) -> None: ...

    with DAG("hand", default_args={"on_failure_callback": mine}) as dag:
        ConduitPipeline("p")
    callbacks = dag.get_task("p.plan").on_failure_callback
    assert mine in callbacks
    assert len(callbacks) == 2


def test_attempts_of_one_cause_are_one_issue_which_a_success_resolves(pipeline: str, api: Any) -> None:
    # Given two attempts that failed alike, at different lines, and one at another node
    for attempt in (1, 2):
        error = NodeFailed("sources.in", "SourceError", f"in.txt was cut at line {attempt}; put it back")
        end("sources.in", AGAIN if attempt == 1 else FAILED, error, attempt=attempt)
    end("acks.in", FAILED, raised(OSError("no route")))
    found = {issue["node"]: issue for issue in api.get("/v1/pipelines/p/issues").json()["items"]}
    assert list(found) == ["acks.in", "sources.in"], "the newest first"
    issue = found["sources.in"]
    assert (issue["kind"], issue["state"], issue["count"]) == ("task", "open", 2)
    assert (issue["error_class"], issue["shape"]) == ("SourceError", "in.txt was cut at line <n>; put it back")
    assert issue["sample"]["error"] == "in.txt was cut at line 2; put it back"
    assert issue["log"] == {"dag": "p", "run": "r", "task": "sources.in", "map_index": -1, "try": 2}
    assert issue["first"] < issue["last"] == issue["sample"]["at"]
    assert list(issue["days"].values()) == [2]
    assert issue["succeeded"] is None
    # When the node succeeds, then its issue is resolved and says so, and no other one
    end("sources.in", WELL)
    (issue,) = api.get("/v1/pipelines/p/issues", params={"state": "resolved"}).json()["items"]
    assert issue["node"] == "sources.in"
    assert issue["succeeded"] > issue["last"]
    # And when it fails again, it is open again
    end("sources.in", FAILED, NodeFailed("sources.in", "SourceError", "in.txt was cut at line 9; put it back"))
    assert {
        i["node"]: i["count"] for i in api.get("/v1/pipelines/p/issues", params={"state": "open"}).json()["items"]
    } == {
        "acks.in": 1,
        "sources.in": 3,
    }


def test_an_issue_of_a_task_is_decided_about_as_one_of_dead_letters(pipeline: str) -> None:
    def call(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["issues", *words])
        assert result.exit_code == code, result.output
        return result

    end("sources.in", FAILED, NodeFailed("sources.in", "SourceError", "in.txt is gone; put it back"))
    (issue,) = json.loads(call("list", "p", "--format", "json", code=1).stdout)
    said = call("list", "p", code=1)
    assert "sources.in" in said.stdout
    assert f"{issue['id']}, try 1 of sources.in in run r of p: in.txt is gone; put it back" in said.stderr
    assert "redrive" not in said.stderr, "there is nothing to send again"
    for word in ("acknowledge", "mute", "resolve"):
        call(word, "p", issue["id"])
        assert json.loads(call("list", "p", "--format", "json").stdout) == []
    end("sources.in", FAILED, NodeFailed("sources.in", "SourceError", "in.txt is gone; put it back"), attempt=2)
    assert [i["id"] for i in json.loads(call("list", "p", "--format", "json", code=1).stdout)] == [issue["id"]]
    end("sources.in", WELL)
    call("list", "p")
    assert "it has succeeded since" in call("list", "p", "--all").stderr


@pytest.mark.parametrize(
    ("error", "error_class", "message"),
    [
        (AirflowFailException("StateLost: nothing is there"), "failed", "StateLost: nothing is there"),
        (raised(AirflowFailException("x"), SourceError("it is gone")), "SourceError", "it is gone"),
        (AirflowException("the server is gone"), "failed", "the server is gone"),
        (AirflowTaskTimeout("after 60 s"), "AirflowTaskTimeout", "after 60 s"),
        (BrokerUnavailable("it was away"), "BrokerUnavailable", "it was away"),
        (KeyError("x"), "KeyError", "'x'"),
        (RuntimeError(), "RuntimeError", "RuntimeError"),
        (None, "killed", "its process ended without a word; see the task's log"),
    ],
)
def test_an_error_has_its_class_and_its_own_words(pipeline: str, error: Any, error_class: str, message: str) -> None:
    end("plan", FAILED, error)
    (found,) = failing()
    assert (found.node, found.error_class, found.error) == ("plan", error_class, message)


def test_who_was_taken_over_from_or_stopped_has_not_failed(pipeline: str) -> None:
    end("sources.in", FAILED, raised(Fenced("the lease is lost")))
    end("plan", FAILED, raised(AirflowFailException("p is stopped"), PipelineStopped("p is stopped")))
    assert failing() == []


def test_the_error_that_stopped_a_pipeline_counts_once_however_many_tasks_meet_it(pipeline: str) -> None:
    # Given a pipeline that stopped at a nack, which is no dead letter
    stopped = raised(AirflowFailException("p is degraded"), PipelineStopped("p is degraded"))
    broker = broker_of("p")
    broker.lifecycle.register(["in"], ["web", "log:b"])
    broker.lifecycle.fail("processors/tidy", "TypeError: 7 is no text", "TypeError", 1)
    for attempt in (1, 2):
        end("sources.in", FAILED, stopped, attempt=attempt)
        end("plan", FAILED, stopped, attempt=attempt)
    (found,) = failing()
    assert (found.node, found.error_class, found.error, found.count) == (
        "processors/tidy",
        "TypeError",
        "7 is no text",
        1,
    )
    # When it goes on, the task that met it says so
    broker.lifecycle.start()
    end("sources.in", WELL)
    (found,) = failing()
    assert found.succeeded > found.last
    # An isolated destination has an error of its own
    broker.lifecycle.stop_destination("web", "403: no", "http 403", 1)
    end("destinations.web", FAILED, stopped)
    assert [of.node for of in failing()] == ["processors/tidy", "destinations.web"]


def test_what_is_secret_is_in_no_issue(pipeline: str, home: Path) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("airflows-own-secret")
    mask_secret("hush-hush")  # a part of another one
    said = "POST http://ann:pass-word@web/ with hush-hush-key, sesame-open and airflows-own-secret was refused"
    end("destinations.web", FAILED, NodeFailed("destinations.web", "Refused", said))
    (found,) = failing()
    assert found.error == "POST http://***@web/ with ***, *** and *** was refused"
    # Also if the file is what is wrong
    (home / "include" / "pipelines" / "p.yaml").unlink()
    end_without_file(raised(OSError("http://ann:pass-word@web/")))


def end_without_file(error: BaseException) -> None:
    from conduit_tasks.airflow.failing import failed

    ti = SimpleNamespace(dag_id="p", run_id="r", task_id="plan", map_index=-1, try_number=1)
    failed({"ti": ti, "exception": error}, pipeline_id="p", node="plan")
    assert failing()[-1].error == "http://***@web/"


def test_a_long_message_keeps_its_end_where_it_says_what_to_do() -> None:
    text = clipped("word " * 1_000 + "\ndo this")
    assert len(text) <= LONGEST + 1
    assert text.startswith("word word")
    assert text.endswith("word do this")
    assert clipped(" a\n b ") == "a b"


def test_without_redis_the_task_fails_as_it_did_and_nothing_more(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://localhost:1/0")
    with structlog.testing.capture_logs() as logged:
        end("plan", FAILED, raised(OSError("broken")))
        end("plan", WELL)
    assert "Failed to run task callback" not in [line["event"] for line in logged]
    assert "the failure of plan is in no issue: BrokerUnavailable" in caplog.text
    assert "the issues of plan do not hear that it succeeded: BrokerUnavailable" in caplog.text


def test_a_source_that_was_left_out_is_an_issue_of_its_ack(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ti = SimpleNamespace(dag_id="p", xcom_pull=lambda task_ids: {"left_out": {"in": "no such folder; make it"}})
    with pytest.raises(AirflowFailException) as found:
        tasks.ack("p", "in", "r", ti=ti)
    end("acks.in", FAILED, found.value)
    (of,) = failing()
    assert of.error_class == "SourceError"
    assert of.error.endswith("was left out of this run: no such folder; make it")


@pytest.fixture
def submit(
    pipeline: str, spark_connection: str, application: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Runs the submit operator with an application of these lines, and ends its task as Airflow does."""
    from conduit_tasks.micro_batch.work_needed import WorkNeeded

    monkeypatch.setattr(
        "conduit_tasks.micro_batch.work_needed.needed", lambda *_, **__: WorkNeeded(True, "micro-batch 1")
    )

    def run(lines: str, context: Any) -> None:
        application.write_text(lines)
        (dag,) = load_dags("p")
        task: Any = dag.get_task("sources.in")
        with pytest.raises(AirflowException) as found:
            task.execute(context)
        end("sources.in", AGAIN, found.value)

    return run


@pytest.mark.slow
def test_an_application_that_fails_or_is_killed_is_an_issue(submit: Callable[..., Any], context: Any) -> None:
    event = json.dumps({"event": "failed", "reason": "in.txt is gone; put it back", "error": "SourceError"})
    submit(f"import sys\nsys.stderr.write('conduit {event}\\n')\nsys.exit(1)\n", context)
    submit("import os\nos._exit(137)\n", context)
    submit("import os\nos._exit(143)\n", context)
    said = [(of.node, of.error_class, of.error) for of in failing()]
    assert said[0] == ("sources.in", "SourceError", "in.txt is gone; put it back")
    assert said[1][:2] == ("sources.in", "killed")
    assert "ended without a word (exit code 137)" in said[1][2]
    assert len(said) == 2, "one that was asked to end has not failed"


def test_an_application_that_meets_a_defect_says_of_which_class_it_is(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from conduit_tasks.application import app

    def defect(*_: Any, **__: Any) -> None:
        raise KeyError("what nobody thought of")

    monkeypatch.setattr("conduit_tasks.spark.session.prepare", lambda: None)
    monkeypatch.setattr("conduit_tasks.micro_batch.work_through.work_through", defect)
    with pytest.raises(KeyError):
        app.main(["--pipeline", "p", "--node", "sources.in", "--run", "r"])
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("conduit {")]
    event = json.loads(said[-1].removeprefix("conduit "))
    assert (event["event"], event["error"], event["reason"]) == ("failed", "KeyError", "'what nobody thought of'")
