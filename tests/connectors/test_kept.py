"""Clients that stay connected from one micro-batch to the next."""

from __future__ import annotations

import os
import time

import pytest

from conduit_tasks.connectors import kept

NEW = float("inf")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(kept, "_of", 0)


def test_a_process_keeps_none_unless_it_says_so() -> None:
    closed: list[str] = []
    kept.give("a", "client", lambda: closed.append("a"), NEW)
    assert (kept.take("a"), closed) == (None, ["a"])


def test_what_is_given_back_has_one_taker_who_needs_the_same() -> None:
    kept.keep_here()
    closed: list[str] = []
    kept.give("a", "client", lambda: closed.append("a"), NEW)
    assert kept.take("b") is None
    assert (kept.take("a"), kept.take("a"), closed) == (("client", NEW), None, [])


def test_another_of_the_same_key_takes_its_place() -> None:
    kept.keep_here()
    closed: list[str] = []
    for name in ("first", "second"):
        kept.give("a", name, lambda name=name: closed.append(name), NEW)
    assert (kept.take("a"), closed) == (("second", NEW), ["first"])


def test_the_oldest_is_closed_for_one_too_many() -> None:
    kept.keep_here()
    closed: list[int] = []
    for n in range(kept.MOST + 2):
        kept.give(n, n, lambda n=n: closed.append(n), NEW)
    assert closed == [0, 1]
    kept.close_all()
    assert sorted(closed) == list(range(kept.MOST + 2))
    assert kept.take(5) is None


def test_a_client_is_closed_when_it_is_old() -> None:
    kept.keep_here()
    closed: list[str] = []
    kept.give("a", "client", lambda: closed.append("a"), time.monotonic() - kept.LONGEST - 1)
    assert (kept.take("a"), closed) == (None, ["a"])
    kept.give("b", "client", lambda: closed.append("b"), time.monotonic() - kept.LONGEST - 1)
    kept.give("c", "client", lambda: closed.append("c"), NEW)
    kept.close_old()
    assert (kept.take("c"), closed) == (("client", NEW), ["a", "b"])


def test_a_process_that_was_forked_from_it_has_none() -> None:
    """It has not the threads of a client, and would wait for them for ever."""
    kept.keep_here()
    closed: list[str] = []
    kept.give("a", "client", lambda: closed.append("a"), NEW)
    if (pid := os.fork()) == 0:
        kept.close_all()
        os._exit(0 if kept.take("a") is None and not closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert kept.take("a") == ("client", NEW)
