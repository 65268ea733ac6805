"""A pipeline of a file and an HTTP destination, driven in this process, and its ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import open_spool
from conduit_tasks.pipeline.load import get_pipeline
from tests.faults.conftest import receivers

__all__ = ["receivers"]

Book = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def book() -> Book:
    """The rows of `p`'s ledger as dictionaries."""

    def read(**selection: Any) -> list[dict[str, Any]]:
        pipeline = get_pipeline("p")
        rows: list[dict[str, Any]] = Ledger(open_spool(pipeline), "p").read(**selection).to_pylist()
        return rows

    return read


@pytest.fixture
def conduit(home: Path) -> Callable[..., Result]:
    """Runs `conduit …` in this process, in this home."""
    return lambda *args: CliRunner().invoke(app, list(args))
