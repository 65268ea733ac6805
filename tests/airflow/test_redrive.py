"""`<pipeline>.redrive` in Airflow: parameters are the filters, a wrong one fails at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.redrive import build_redrive_dag, redrive
from conduit_tasks.pipeline.load import get_pipeline
from tests.delivery.shelf import Place, shelves  # noqa: F401 - a fixture
from tests.micro_batch.harness import run_until_quiet


@pytest.fixture
def place(home: Path) -> Place:
    place = Place(home)
    place.feed([(n, f"k{n}") for n in range(5)])
    place.refuse(1, 3)
    run_until_quiet("p")
    place.refuse()
    return place


def call(**params: Any) -> list[dict[str, Any]]:
    given = {**build_redrive_dag(get_pipeline("p")).params.dump(), **params}
    run = SimpleNamespace(triggering_user_name="ada")
    pushed: dict[str, Any] = {}
    try:
        return redrive("p", given, "manual__1", SimpleNamespace(xcom_push=pushed.__setitem__), run)
    except AirflowFailException:
        if pushed:
            assert pushed["return_value"][0]["again"]
        raise


@pytest.mark.proves("X2")
def test_what_its_parameters_choose_goes_again(place: Place) -> None:
    assert call(**{"dry-run": True}) == [{"destination": "d", "letters": 2, "parked": 0}]
    assert len(place.got()) == 3
    (outcome,) = call(keys=["k3"])
    assert (outcome["redriven"], place.got()[-1]) == (1, 3)
    (outcome,) = call(destination="d", classes=["http 400"])
    assert (outcome["redriven"], place.got()[-1]) == (1, 1)
    assert call() == []


def test_a_run_that_makes_dead_letters_again_fails_and_says_how_many(place: Place) -> None:
    place.refuse(3)
    with pytest.raises(AirflowFailException, match="1 of them failed again"):
        call()
    assert place.got()[-1] == 1


def test_a_wrong_parameter_fails_at_once(place: Place) -> None:
    with pytest.raises(AirflowFailException, match="since"):
        call(since="yesterday")


def test_every_pipeline_has_one_and_nothing_schedules_it(place: Place) -> None:
    (dag,) = load_dags(only="p.redrive")
    assert (dag.dag_id, dag.task_ids, dag.timetable.can_be_scheduled) == ("p.redrive", ["redrive"], False)
    assert [d.dag_id for d in load_dags()] == ["p", "p.redrive", "p.replay"]
