"""A guarantee broken on purpose is found, and the seed is named: `conduit verify` would notice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app

Broken = Callable[[pytest.MonkeyPatch], None]


def forgotten_fsync(patch: pytest.MonkeyPatch) -> None:
    """A file destination confirms what is not on the disk yet."""
    from conduit_tasks.connectors import file_destination

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            import os

            return (lambda fd: None) if name == "fsync" else getattr(os, name)

    patch.setattr(file_destination, "os", Lazy())


def confirmed_before_written(patch: pytest.MonkeyPatch) -> None:
    """The broker hears of records that were not written yet."""
    from conduit_tasks.delivery.batch_wise import BatchWise

    write = BatchWise._write

    def hurried(self: Any, chunk: Any) -> Any:
        counts = {"matched": chunk.records, "delivered": chunk.records}
        if self._work.chain is None and not self._work.culprits and len(chunk.seqs) == self._work.matched:
            self._port.confirm([(0, self._work.total - 1)], counts)
        return write(self, chunk)

    patch.setattr(BatchWise, "_write", hurried)


def acked_before_confirmed(patch: pytest.MonkeyPatch) -> None:
    """Sources are acked at once, whatever the destinations say."""
    from conduit_tasks.broker.acks import Acks

    begin = Acks.begin_ack
    patch.setattr(
        Acks,
        "begin_ack",
        lambda self, source, destinations, ack_on, token=None: begin(self, source, (), "stored", token),
    )


def dead_letters_later(patch: pytest.MonkeyPatch) -> None:
    """A nack is confirmed, its dead letter is thrown away."""
    from conduit_tasks.delivery.dead_letter_store import DeadLetterStore

    patch.setattr(DeadLetterStore, "store", lambda self, letters: None)


def collected_too_early(patch: pytest.MonkeyPatch) -> None:
    """Sealed files are removed while somebody needs them."""
    from conduit_tasks.broker.acks import Acks

    patch.setattr(Acks, "collectable", lambda self, *_: [m] if (m := self.latest_sealed()) else [])
    patch.setattr(Acks, "begin_collect", lambda self, m: None)
    patch.setattr(Acks, "end_collect", lambda self, m: None)


def forgotten_cut(patch: pytest.MonkeyPatch) -> None:
    """A file destination goes on behind what an attempt before it wrote and did not confirm."""
    from conduit_tasks.connectors.file_destination import FileDestination

    patch.setattr(FileDestination, "_confirmed", lambda self, path, size, state: size)


def unfenced(patch: pytest.MonkeyPatch) -> None:
    """Whoever once held a lease goes on as if nobody had taken it over."""
    from dataclasses import replace

    from conduit_tasks.broker import scripts

    for name, script in list(vars(scripts).items()):
        if isinstance(script, scripts.Script):
            source = script.source.replace("if held[1] ~= token or", "if false and held[1] ~= token or")
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            patch.setattr(scripts, name, replace(script, source=source, sha=sha))


BREAKS: dict[Broken, tuple[int, int]] = {
    forgotten_fsync: (3, 10),
    confirmed_before_written: (2, 10),
    acked_before_confirmed: (2, 10),
    dead_letters_later: (1, 10),
    collected_too_early: (1, 3),
    forgotten_cut: (1, 3),
    unfenced: (126, 2),
}
"""What is broken → the first seed, and how many at most, among which it is found."""


@pytest.mark.proves("X6")
@pytest.mark.parametrize("broken", BREAKS, ids=lambda f: f.__name__)
def test_what_is_broken_on_purpose_is_found_and_its_seed_named(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    first, most = BREAKS[broken]
    broken(monkeypatch)
    for seed in range(first, first + most):
        said = CliRunner().invoke(app, ["verify", "--seed", str(seed), "--jobs", "1", "--json"])
        if said.exit_code:
            break
    assert said.exit_code == 1, f"{broken.__doc__} was not noticed in {most} seeds"
    found = json.loads(said.stdout)
    assert found["seeds"][0]["violations"]
    assert found["seeds"][0]["again"] == f"conduit verify --seed {seed} --events 16"
