from __future__ import annotations

import pytest

from conduit_tasks.connectors.base import Outcome
from conduit_tasks.connectors.outcome import error_class, outcome_of, status_kind
from conduit_tasks.errors import InvariantBroken, RecordError, Refused, Unavailable


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        ("delivered", [200, 201, 202, 204, 299]),
        ("failed", [408, 425, 429, 500, 502, 503, 504, 599]),
        ("refused", [300, 301, 304, 400, 401, 403, 404, 409, 410, 413, 422, 451]),
    ],
)
def test_a_status_is_delivered_refused_or_may_recover(kind: str, statuses: list[int]) -> None:
    assert {status_kind(status) for status in statuses} == {kind}


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("nobody"), "failed"),
        (TimeoutError(), "failed"),
        (Unavailable("down", retry_after=3, status=503), "failed"),
        (Refused("no", status=422), "refused"),
        (RecordError("raw data"), "refused"),
    ],
)
def test_what_a_destination_raises_stands_for_an_outcome(error: Exception, kind: str) -> None:
    outcome = outcome_of(error)
    assert outcome is not None
    assert outcome.kind == kind
    assert outcome.retry_after == getattr(error, "retry_after", None)


@pytest.mark.parametrize("error", [KeyError("bug"), InvariantBroken("broken"), ZeroDivisionError()])
def test_a_fault_of_the_program_is_no_outcome(error: Exception) -> None:
    assert outcome_of(error) is None


def test_classes_are_short_enough_to_group_by() -> None:
    assert error_class(Outcome("refused", "400 Bad Request: no such carrier", 400)) == "http 400"
    assert error_class(Outcome("failed", "no answer within 3 s")) == "timeout"
    assert error_class(Outcome("failed", "ConnectionRefusedError: …")) == "unavailable"
    assert error_class(Outcome("refused", "no")) == "refused"
