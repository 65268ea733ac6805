"""Airflow's REST API as the commands read it: whatever answers there, they end with an error of ours that says so."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.airflow import rest
from conduit_tasks.errors import ConduitError
from conduit_tasks.stack import api as airflow
from tests.fuzz.hostile import BYTES, ending, fuzzed
from tests.fuzz.test_http_source import HEADS, answer, saying

CALLS = {
    "dag": lambda api: api.dag("d"),
    "run": lambda api: api.run("d", "r"),
    "active": lambda api: api.active_runs("d"),
    "tasks": lambda api: api.tasks("d", "r"),
    "log": lambda api: api.log("d", "r", "t", 1),
    "pool": lambda api: api.set_pool("p", 1),
    "trigger": lambda api: api.trigger("d", "r", {}),
}
BODIES = [
    b"<html>sign in</html>", b"", b"[]", b"null", b"{}", b'{"is_paused":1,"state":[],"content":{}}', b"\xff",
    b'{"dag_runs":[1],"task_instances":[{"task_id":"t"}],"content":[{},1]}', b"[" * 100_000,
]  # fmt: skip


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "TRIES", 2)
    monkeypatch.setattr(rest, "PAUSE", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@fuzzed
@given(
    body=st.sampled_from(BODIES) | BYTES,
    heads=HEADS,
    status=st.sampled_from([b"200 OK"] * 4 + [b"201 Made", b"302 Found", b"401 No", b"404 No", b"409 No", b"503 No"]),
    signed_in=st.booleans(),
)
@example(body=BODIES[0], heads=[], status=b"200 OK", signed_in=True)
@example(body=BODIES[0], heads=[], status=b"302 Found", signed_in=False)
@example(body=BODIES[4], heads=[], status=b"200 OK", signed_in=False)
@example(body=BODIES[4], heads=[], status=b"200 OK", signed_in=True)
@example(body=BODIES[0], heads=[b"Content-Type: text/plain; charset=utf-16"], status=b"409 No", signed_in=True)
@example(body=BODIES[8], heads=[], status=b"503 No", signed_in=True)
@example(body=BODIES[7], heads=[b"Content-Encoding: gzip"], status=b"200 OK", signed_in=True)
def test_what_is_no_airflow_is_an_error_that_says_so(
    call: str, body: bytes, heads: list[bytes], status: bytes, signed_in: bool
) -> None:
    said = ""
    page = answer(body, *heads, status=status)
    with (
        ending(),
        saying(*[page] * 6) as url,
        airflow.Api(url.partition("/x")[0], password="s3cr3t", token="t0k3n" if signed_in else "") as api,
    ):
        try:
            CALLS[call](api)
        except ConduitError as error:
            said = str(error)
    assert "s3cr3t" not in said
    assert "t0k3n" not in said
