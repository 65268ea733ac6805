"""An Iceberg table in a SQL catalog that is in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from conduit_tasks.connectors.iceberg.catalog import properties
from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.errors import Unavailable
from tests.connectors.postgres_database import Database
from tests.connectors.test_delta import rows


@pytest.mark.proves("B8", "O5", "I4")
@pytest.mark.usefixtures("home")
def test_of_two_writers_one_commits_and_a_catalog_that_is_gone_is_named_without_its_password(
    db: Database, tmp_path: Path
) -> None:
    settings = {"table": "a.t", "catalog.uri": db.url, "catalog.warehouse": str(tmp_path)}
    one, other = IcebergDestination(settings), IcebergDestination(settings)
    one.open(None)
    one.write(rows({"n": 1}))
    other.open(None)
    one.write(rows({"n": 2}, first=2))
    other.write(rows({"n": 2}, {"n": 3}, first=2))
    with load_catalog("default", **properties(settings)) as catalog:
        assert sorted(catalog.load_table("a.t").scan().to_arrow()["n"].to_pylist()) == [1, 2, 3]
    one.close()
    other.close()
    away = IcebergDestination({**settings, "catalog.uri": "postgresql://me:S3CRET@127.0.0.1:1/db"})
    with pytest.raises(Unavailable, match="Connection refused") as raised:
        away.open(None)
    assert "S3CRET" not in str(raised.value)
