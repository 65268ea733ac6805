"""Steps after a delivery: called for each micro-batch that a destination confirmed, in order, at least once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.airflow.on_delivered import step_of, stepping, trigger
from conduit_tasks.micro_batch import on_delivered
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.on_delivered import Delivered
from conduit_tasks.micro_batch.plan import in_flight, plan_run
from conduit_tasks.pipeline.load import load_file
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: in.txt}}}}
      - id: out
        type: destination
        plugin: file
        settings: {{path: out.jsonl}}
        trigger: {{filters: [{{sql: "TRUE"}}]}}
        on-delivered: {step}
"""
STEPS = """
import time
from pathlib import Path

def tell(delivered):
    while Path({told!r} + ".held").exists():
        time.sleep(0.01)
    with Path({told!r}).open("a") as file:
        file.write(f"{{delivered.micro_batch}} {{delivered.records}}\\n")
"""


@pytest.fixture
def told(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline whose step writes into this file, once there is none beside it that ends with .held."""
    path = tmp_path / "told"
    path.touch()
    module = f"steps_of_{tmp_path.name}".replace("-", "_")
    (home / f"{module}.py").write_text(STEPS.format(told=str(path)))
    monkeypatch.syspath_prepend(str(home))
    write_pipeline(home, "p", PIPELINE.format(step=f"{{call: '{module}:tell'}}"))
    return path


def deliver(home: Path, run: str, lines: int) -> None:
    with (home / "in.txt").open("a") as file:
        file.write("x\n" * lines)
    run_once("p", run)


def begin() -> None:
    with opened("p", "begin") as context:
        on_delivered.begin(context, "out")


def call(step: Any, owner: str = "r") -> int:
    with opened("p", owner) as context:
        return on_delivered.call(context, "out", step)


def test_each_micro_batch_is_told_once_and_in_order(home: Path, told: Path) -> None:
    # Given a step that is there from the beginning, and two micro-batches
    begin()
    deliver(home, "r1", 3)
    deliver(home, "r2", 2)
    # When the destination's task of a third run ends
    with stepping("p", "out", "r3"):
        deliver(home, "r3", 1)
    # Then
    assert told.read_text() == "1 3\n2 2\n3 1\n"
    # And again: nothing
    with stepping("p", "out", "r3"):
        pass
    assert told.read_text().count("\n") == 3


def test_what_was_delivered_before_there_was_a_step_is_not_told(home: Path, told: Path) -> None:
    deliver(home, "r1", 3)
    with stepping("p", "out", "r2"):
        deliver(home, "r2", 2)
    assert told.read_text() == "2 2\n"


def test_a_step_that_fails_is_called_again_and_holds_up_those_after_it(home: Path, told: Path) -> None:
    # Given three micro-batches, and a step that fails at the second
    begin()
    for n in (1, 2, 3):
        deliver(home, f"r{n}", n)
    seen: list[int] = []

    def fails(delivered: Delivered) -> None:
        seen.append(delivered.micro_batch)
        if delivered.micro_batch == 2:
            raise OSError("down")

    with pytest.raises(OSError, match="down"):
        call(fails)
    assert seen == [1, 2]
    # Then a run has work, although there is nothing to deliver
    assert plan_run("p", "r4").reason == "steps not called: out"
    # And the next call begins with the second
    assert call(lambda delivered: seen.append(delivered.micro_batch)) == 2
    assert seen == [1, 2, 2, 3]


def test_a_stop_ends_when_the_last_step_was_called(home: Path, told: Path) -> None:
    # Given a stop while a micro-batch is delivered, whose acks look before the step is called
    begin()
    held = told.with_name(f"{told.name}.held")
    held.touch()
    with stepping("p", "out", "r1"):
        deliver(home, "r1", 3)
        with opened("p", "stop") as context:
            context.broker.lifecycle.stop(60)
            assert in_flight(context) == "steps not called: out"
        held.unlink()
    # Then it ends with the call, and needs no further run
    assert told.read_text() == "1 3\n"
    with opened("p", "look") as context:
        assert context.broker.lifecycle.stored_status() == "stopped"


def test_a_process_that_dies_between_step_and_word_calls_again(home: Path, told: Path) -> None:
    # Given a step that was called, whose caller died before it could say so
    begin()
    deliver(home, "r1", 3)
    seen: list[int] = []

    class Died(BaseException):
        pass

    def dies(delivered: Delivered) -> None:
        seen.append(delivered.micro_batch)
        raise Died

    with suppress(Died):
        call(dies)
    call(lambda delivered: seen.append(delivered.micro_batch), "another")
    assert seen == [1, 1]


def test_two_tasks_do_not_tell_at_the_same_time(home: Path, told: Path) -> None:
    # Given a task that is telling
    begin()
    deliver(home, "r1", 3)
    inside: list[int] = []

    def step(delivered: Delivered) -> None:
        # When another one tries
        inside.append(call(lambda _: inside.append(99), "other"))

    # Then that one leaves it to the first
    assert call(step) == 1
    assert inside == [0]


def test_a_micro_batch_that_holds_nothing_for_the_destination_is_passed_over(home: Path, told: Path) -> None:
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    write_pipeline(home, "p", text.replace("TRUE", "FALSE"))
    begin()
    deliver(home, "r1", 3)
    assert call(lambda _: pytest.fail("told")) == 0
    assert plan_run("p", "r2").work is False


def test_the_id_of_a_micro_batch_differs_when_its_number_comes_again() -> None:
    first, again = (Delivered("p", "out", 7, manifest=f"p/7/manifest-{n}.json") for n in (1, 2))
    assert first.id != again.id
    # And the time of the seal, which is put right if the clock was ahead, is not in it
    assert first.id == Delivered("p", "out", 7, 3, 1.0, first.manifest).id


class Comms:
    """Airflow's supervisor: keeps what it is asked, and answers."""

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    def send(self, message: Any) -> Any:
        self.asked.append(message)
        return self.answer


def error(kind: str) -> Any:
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return ErrorResponse(error=ErrorType[kind], detail={"why": "x"})


def test_a_dag_is_triggered_with_the_micro_batch_as_its_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    comms = Comms()
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", comms, raising=False)
    step = step_of({"dag": "report"})
    step(Delivered("p", "out", 7, 3, 1.0))
    step(Delivered("p", "out", 7, 3, 1.0))
    first, again = comms.asked
    assert (first.dag_id, first.conf["micro_batch"], first.conf["records"]) == ("report", 7, 3)
    # A second call starts no second run
    assert first.run_id == again.run_id
    comms.answer = error("DAGRUN_ALREADY_EXISTS")
    step(Delivered("p", "out", 7, 3, 1.0))
    # And a DAG that is not there is an error that names it
    comms.answer = error("GENERIC_ERROR")
    with pytest.raises(Exception, match="the DAG report is not triggered for micro-batch 7"):
        trigger("report", Delivered("p", "out", 7))


@pytest.mark.parametrize(
    ("step", "code", "says"),
    [
        ("{dag: a, call: 'x:y'}", "E102", "one thing"),
        ("{}", "E102", "one thing"),
        ("{asset: a, dag: b}", "E102", "one thing"),
        ("{asset: 's3://u:x@b/y'}", "E217", "leave out the login"),
        ("{asset: context}", "E217", "for itself"),
        ("{asset: 'http://[x'}", "E217", "no URI"),
        ("{call: nope}", "E212", "not a function"),
        ("{call: 'include.nothing:there'}", "E212", "cannot be imported"),
        ("{dga: a}", "E101", "did you mean 'dag'?"),
        ("{dag: 'a b'}", "E104", ""),
    ],
)
def test_a_wrong_step_is_named(home: Path, step: str, code: str, says: str) -> None:
    write_pipeline(home, "p", PIPELINE.format(step=step))
    found = load_file(home / "include" / "pipelines" / "p.yaml", plugins=True).errors
    assert code in [f.code for f in found]
    assert says in " ".join(f"{f.message} {f.hint}" for f in found)
