import re

from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.pipeline.names import dag_id, resend_dag_id, safe_name, task_id

ids = st.text("abcXYZ019_:.-", min_size=1, max_size=128)


def test_an_id_that_airflow_takes_stays() -> None:
    assert dag_id("orders-2.eu_west") == "orders-2.eu_west"
    assert task_id("destinations.audit") == "destinations.audit"
    assert task_id("processors") == "processors"


def test_another_id_is_made_safe_and_keeps_its_group() -> None:
    name = task_id("destinations.audit:archive")
    assert re.fullmatch(r"destinations\.audit_archive-[0-9a-f]{8}", name)


def test_a_name_that_is_too_long_is_cut_and_stays_unique() -> None:
    one, two = safe_name("x" * 300 + "1"), safe_name("x" * 300 + "2")
    assert len(one) == len(two) == 250
    assert one != two


@given(ids, ids)
def test_different_pipelines_have_different_dags(one: str, two: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,250}", resend_dag_id(one))
    assert (dag_id(one) == dag_id(two)) == (one == two)
