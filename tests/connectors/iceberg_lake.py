"""A catalog of Iceberg tables as another program sees it, and destinations that write to one of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.connectors.rows import ShardName

SQL = {"table": "lake.t", "catalog.uri": "sqlite:///c.db", "catalog.warehouse": "wh"}


class Lake:
    """The catalog, as another program opens it, and destinations that write to its table."""

    def __init__(self, catalog: Catalog, settings: dict[str, str]) -> None:
        self.catalog, self.settings = catalog, settings
        self._made: list[IcebergDestination] = []

    def destination(self, shard: ShardName | None = None, **settings: str) -> IcebergDestination:
        made = IcebergDestination({**self.settings, **{n.replace("_", "-"): value for n, value in settings.items()}})
        made.pipeline, made.connector, made.shard = "p", "to", shard
        made.open(None)
        self._made.append(made)
        return made

    def upserts(self, key: str = "id", **settings: str) -> IcebergDestination:
        return self.destination(mode="upsert", key=key, **settings)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.settings["table"])

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.scan().to_arrow().to_pylist()
        return found

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.rows())

    def by_id(self) -> dict[Any, Any]:
        found = self.rows()
        assert len({row["id"] for row in found}) == len(found), "a row per key"
        return {row["id"]: row.get("v") for row in found}

    def close(self) -> None:
        for made in self._made:
            made.close()
        self.catalog.close()


def in_sqlite(home: Path) -> Lake:
    return Lake(load_catalog("default", uri=f"sqlite:///{home}/c.db", warehouse=str(home / "wh")), SQL)


def in_rest(uri: str) -> Lake:
    settings = {"table": f"lake.t{uuid.uuid4().hex}", "catalog.uri": uri, "catalog.name": "rest"}
    return Lake(load_catalog("rest", uri=uri), settings)
