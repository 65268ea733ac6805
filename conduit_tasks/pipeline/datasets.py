"""OpenLineage's names of what a pipeline reads and writes (its "Naming"), made from the URIs of assets."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

FILES = frozenset({"file", "sqlite"})
"""Schemes whose path is one on a disk."""
TABLES = frozenset({"postgres", "mysql", "mssql", "oracle", "iceberg"})
"""Schemes whose path is a table's, its parts joined by dots in a name."""


@dataclass(frozen=True)
class Dataset:
    """A dataset by its namespace, where the data is, and its name there."""

    namespace: str
    name: str


def dataset(uri: str) -> Dataset | None:
    """Returns the dataset of an asset; None if the asset is only a name. A login that a URI has is left out."""
    scheme, found, _ = uri.partition("://")
    if not found or not scheme:
        return None
    parts = urlsplit(uri)
    host, path = parts.netloc.rpartition("@")[2], unquote(parts.path)
    if scheme in FILES:
        return Dataset("file", path) if path else None
    if scheme in ("http", "https"):
        return Dataset(f"{scheme}://{host}", path or "/")
    name = path.strip("/")
    if scheme in TABLES:
        name = name.replace("/", ".")
    return Dataset(f"{scheme}://{host}", name or "/") if host else None
