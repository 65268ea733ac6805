"""An Iceberg table whose files are objects of S3 (moto), in a SQL catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.errors import Unavailable
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_delta import rows

pytestmark = pytest.mark.xdist_group("moto")


@pytest.mark.proves("B8", "O5")
def test_rows_are_objects_of_a_bucket_and_a_store_that_is_down_is_waited_for(home: Path, moto: MotoServer) -> None:
    """Given a store that is down for one write, then that one fails without the key, and arrives once when the store is
    back."""
    client = moto.client("s3")
    client.create_bucket(Bucket="iceberg", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    client.close()
    names = {"endpoint-url": "endpoint", "region": "region"}
    store = {f"s3.{names.get(name, name)}": value for name, value in moto.settings.items()}
    settings = {"uri": f"sqlite:///{home}/c.db", "warehouse": "s3://iceberg/warehouse", **store}
    out = IcebergDestination({"table": "a.t", **{f"catalog.{name}": value for name, value in settings.items()}})
    out.open(None)
    out.write(rows({"n": 1}))
    moto.stop()
    with pytest.raises(Unavailable, match=r"a\.t cannot be written") as raised:
        out.write(rows({"n": 1}, {"n": 2}))
    assert "a-secret-of-tests" not in str(raised.value)
    moto.start()
    out.open(None)
    out.write(rows({"n": 1}, {"n": 2}))
    out.close()
    with load_catalog("default", **settings) as catalog:
        assert sorted(catalog.load_table("a.t").scan().to_arrow()["n"].to_pylist()) == [1, 2]
