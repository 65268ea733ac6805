"""What to do about an issue: each class that letters and tasks get has advice of its own."""

from __future__ import annotations

from typing import Literal

import pytest

from conduit_tasks import errors
from conduit_tasks.connectors.outcome import Outcome, error_class
from conduit_tasks.dead_letters.advice import advice
from conduit_tasks.dead_letters.parking import PARKED
from conduit_tasks.delivery.reading import KILLED
from conduit_tasks.processors.result import NACKED
from conduit_tasks.resend.reprocess import UNDECODED

OTHER = advice("destinations.d", "ValueError", of_task=False)
OTHER_TASK = advice("destinations.d", "ValueError", of_task=True)

OF_RECORDS = {
    *(kind.error_class for kind in vars(errors).values() if getattr(kind, "error_class", "")),
    *(PARKED, KILLED, NACKED, UNDECODED),
    error_class(Outcome("refused", "no")),
    error_class(Outcome("failed", "no answer within 10 s")),
    error_class(Outcome("failed", "connection refused")),
}


@pytest.mark.parametrize("of", sorted(OF_RECORDS))
def test_each_class_of_dead_letters_has_advice(of: str) -> None:
    said = advice("destinations.d", of, of_task=False)
    assert said != OTHER
    assert "send" in said.lower()
    # And where such a nack has stopped a task, the task's issue says how to go on
    assert "`conduit start`" in advice("destinations.d", of, of_task=True)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Correct the records by a processor of d"),
        (401, "Renew the credentials in the settings of d"),
        (403, "right to write"),
        (404, "Check the address"),
        (409, "retry-on"),
        (413, "smaller"),
        (422, "Correct the records"),
        (429, "rate-limit"),
        (500, "check that it is up"),
        (503, "check that it is up"),
    ],
)
def test_an_answer_of_a_server_has_advice_by_its_status(status: int, said: str) -> None:
    kind: Literal["refused", "failed"] = "refused" if status < 429 else "failed"
    assert said in advice("destinations.d", error_class(Outcome(kind, "no", status=status)), of_task=False)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("killed", "memory"),
        ("nack window", "`conduit start`"),
        ("ConfigError", "`conduit validate`"),
        ("NotDurable", "`conduit broker check`"),
        ("Unavailable", "destinations.d back"),
        ("InvariantBroken", "report"),
    ],
)
def test_a_failed_task_has_advice_by_its_error(of: str, said: str) -> None:
    assert said in advice("destinations.d", of, of_task=True) != OTHER_TASK


def test_every_error_of_a_task_that_has_advice_is_one_of_ours() -> None:
    from conduit_tasks.dead_letters.advice import _TASKS

    assert {name for name in _TASKS if name[0].isupper()} <= set(vars(errors))


def test_what_nobody_foresaw_has_advice_too() -> None:
    assert "See the message" in OTHER
    assert "See the task's log" in OTHER_TASK
