"""The project in which a pipeline's file is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.settings import forget


@pytest.fixture
def changed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the changed file is, apart from what runs; nobody drains (no Airflow), and nobody waits for it."""
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "1")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")
    forget()
    return tmp_path / "changed.yaml"
