"""A redrive takes letters in chunks, bounded by time and bytes (SEMANTICS C13, X2)."""

from __future__ import annotations

import pytest

from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.resend import letters
from conduit_tasks.resend import redrive as module
from conduit_tasks.resend.letters import Redriven
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.settings import forget, settings
from tests.delivery.shelf import Place, Shelf, shelves  # noqa: F401 - a fixture
from tests.delivery.test_redrive import failed, place
from tests.limits import batch_bytes
from tests.micro_batch.harness import run_once, run_until_quiet

__all__ = ["place"]


def test_a_chunk_is_what_a_live_delivery_waits_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    failed(place, 0, 1, 2, 3, 4)
    place.feed([(10, "k")])
    heard: list[tuple[int, int]] = []

    def between(outcome: Redriven) -> None:
        heard.append((outcome.redriven, len(place.got())))
        if len(heard) == 1:
            run_once("p", "live")

    with opened("p", "test") as context:
        redrive(context, Selection(), "ada", wait=60.0, progress=between)
    assert [n for n, _ in heard] == [2, 4, 5]
    assert place.got() == [5, 6, 7, 8, 9, 0, 1, 10, 2, 3, 4]


@pytest.mark.proves("C13", "X2")
def test_a_chunk_is_bounded_by_bytes_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given letters of 10 KB each, where three are as many bytes as may be held
    place.feed([(n, f"{n}" + "k" * 5_000) for n in range(8)])
    place.refuse(*range(8))
    run_until_quiet("p")
    place.refuse()
    monkeypatch.setenv("CONDUIT_BATCH_BYTES", "35000")
    forget()
    heard: list[int] = []
    sizes: list[int] = []
    whole = letters.deliver_items
    monkeypatch.setattr(
        module, "deliver_items", lambda *args, **more: (sizes.append(len(args[4])), whole(*args, **more))[1]
    )
    # When they are redriven
    with opened("p", "test") as context:
        redrive(context, Selection(), "ada", wait=60.0, progress=lambda outcome: heard.append(outcome.redriven))
    # Then a few go at a time, and all arrive, in order
    assert max(sizes) <= 3
    assert heard[-1] == 8
    assert place.got() == list(range(8))


@pytest.mark.proves("C13", "I10")
def test_records_that_go_again_together_are_read_by_bytes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(place, 1, 3, 4, 8)
    with opened("p", "test") as context:
        store = DeadLetterStore(settings().path(settings().dead_letters), context.pipeline.id)
        items = [letters.Item(letter) for letter in store.letters()]
    with batch_bytes(30):
        batches = list(letters._batches(items, [0] * len(items)))
    assert [seqs.tolist() for seqs, _ in batches] == [[0], [1], [2], [3]]
    assert [batch.column("n").to_pylist() for _, batch in batches] == [[0], [1], [2], [3]]
