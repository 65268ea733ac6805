"""Settings of the destination `iceberg`, and what is said of a catalog that does not answer as it should."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conduit_tasks.connectors.iceberg.catalog import secrets_of, translated
from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.errors import ConfigError, Unavailable
from tests.connectors.iceberg_lake import SQL, Lake
from tests.connectors.test_delta import rows

pytestmark = pytest.mark.xdist_group("iceberg")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "t"}, "namespace and a name"),
        ({"table": "a..t"}, "namespace and a name"),
        ({"key": "id"}, "option 'key' is of no use"),
        ({"mode": "upsert", "rows": "opencdc"}, "option 'rows'"),
        ({"catalog.uri": "http://u:SECRET@h/c"}, "option 'catalog.uri' must not hold a user or password"),
        ({"catalog.uri": "postgresql://u:SE@CRET@h/c"}, "option 'catalog.uri' cannot be read"),
        ({"catalog.type": "in-memory"}, "option 'catalog.type' cannot be 'in-memory'; it is one of rest, sql"),
        ({"catalog.uri": "sqlite://"}, "option 'catalog.uri' names no file"),
        ({"catalog.uri": "sqlite:///:memory:"}, "option 'catalog.uri' names no file"),
        ({"catalog.s3.endpoint": "http://u:SECRET@h"}, "option 'catalog.s3.endpoint'"),
        ({"rows-per-commit": "0"}, "option 'rows-per-commit'"),
    ],
)
def test_settings_that_are_wrong_are_named_without_what_is_secret(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        IcebergDestination({**SQL, **settings})
    assert "SECRET" not in str(raised.value)


def test_a_catalog_has_an_address_or_a_name() -> None:
    with pytest.raises(ConfigError, match=r"'catalog\.uri' is missing"):
        IcebergDestination({"table": "a.t"})
    # Of a name, pyiceberg's own configuration knows the rest
    IcebergDestination({"table": "a.t", "catalog.name": "lake"})


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"catalog.type": "hive"}, ConfigError, "catalog"),
        ({"catalog.uri": "ftp://h"}, ConfigError, "catalog"),
        ({"catalog.uri": "http://127.0.0.1:1", "catalog.token": "S3CRET"}, Unavailable, "cannot be written"),
        ({"catalog.uri": "postgresql+psycopg2://me:S3CRET@127.0.0.1:1/db"}, Unavailable, "cannot be written"),
    ],
)
def test_a_catalog_that_is_not_there_is_named_without_what_is_secret(
    lake: Lake, settings: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        lake.destination(**settings)
    assert "S3CRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"catalog.token": "S3CRET"}, "the token S3CRET is old"),
        ({"catalog.credential": "me:S3CRET"}, "me has not S3CRET"),
        ({"catalog.s3.secret-access-key": "S3CRET/x"}, "signed by S3CRET%2Fx"),
        ({"catalog.uri": "postgresql://me:S3CRET%40@h/db"}, "me, S3CRET@, h"),
    ],
)
def test_what_pyiceberg_says_is_told_without_what_is_secret(settings: dict[str, str], said: str) -> None:
    with (
        pytest.raises(Unavailable, match=r"lake\.t cannot be written: .*\*\*\*") as raised,
        translated("lake.t", secrets_of({**SQL, **settings})),
    ):
        raise OSError(said)
    assert "S3CRET" not in str(raised.value)


def test_the_folders_of_a_catalog_are_made(home: Path) -> None:
    made = IcebergDestination({**SQL, "catalog.uri": "sqlite:///a/b/c.db?timeout=20", "catalog.warehouse": "a/wh"})
    made.open(None)
    made.write(rows({"n": 1}))
    made.close()
    assert {path.name for path in (home / "a").iterdir()} == {"b", "wh"}


def test_a_package_that_is_missing_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ConfigError, match=r"pip install 'conduit-tasks\[iceberg\]'"):
        lake.destination()


def test_an_upsert_needs_a_key(lake: Lake) -> None:
    out = lake.destination(mode="upsert")
    with pytest.raises(ConfigError, match="option 'key' is missing: the columns"):
        out.write(rows({"n": 1}))
    lake.destination().write(rows({"n": 1}))
    out.open(None)
    with pytest.raises(ConfigError, match="option 'key' is missing: the table has no identifier fields"):
        out.write(rows({"n": 2}, first=2))
    with pytest.raises(ConfigError, match="option 'partition-by' names day"):
        lake.destination(table="lake.other", partition_by="day").write(rows({"n": 1}))


def test_the_file_of_a_table_that_is_gone_is_an_error_that_may_pass(lake: Lake, home: Path) -> None:
    out = lake.destination()
    out.write(rows({"n": 1}))
    for path in (home / "wh").rglob("*.metadata.json"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(Unavailable, match=r"lake\.t cannot be written"):
        lake.destination()
