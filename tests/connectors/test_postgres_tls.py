"""`postgres` to a server that speaks TLS: one whose certificate is not trusted, or another host's, is not talked to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.postgres.connector import PostgresSource
from conduit_tasks.connectors.postgres.destination import PostgresDestination
from conduit_tasks.errors import SourceError, Unavailable
from tests.connectors.postgres_database import Database
from tests.connectors.test_delta import rows
from tests.connectors.tls import Authority

HOST = "127.0.0.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    for host in (HOST, "127.0.0.2"):
        made.context(host)
    return made


@pytest.fixture
def secure(db: Database) -> Iterator[Database]:
    """The server takes TLS meanwhile, and those who speak it only."""
    rules = db.server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all all trust\nhostssl {db.name} all {HOST}/32 trust\nhost postgres all {HOST}/32 trust\n")
    yield db
    rules.write_text(before)
    db.reload("ALTER SYSTEM SET ssl = off")


def _certified(db: Database, folder: Path, host: str) -> None:
    """The server shows the certificate of this address from now on."""
    for end in ("pem", "key"):
        placed = Path(shutil.copy(folder / f"{host}.{end}", db.server.folder / "data" / f"server.{end}"))
        placed.chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(placed, "postgres")
    settings = [f"ALTER SYSTEM SET ssl_{n}_file = 'server.{e}'" for n, e in (("cert", "pem"), ("key", "key"))]
    db.reload("ALTER SYSTEM SET ssl = on", *settings)


def test_a_certificate_is_checked_by_source_and_destination(
    secure: Database, authority: Authority, tmp_path: Path
) -> None:
    _certified(secure, tmp_path, HOST)
    verified = f"{secure.url}?sslmode=verify-full&sslrootcert={authority.ca}"
    trusting = Database(secure.server, f"{secure.name}?sslmode=require")
    trusting.run("CREATE TABLE t (n int PRIMARY KEY)")
    out = PostgresDestination({"url": verified, "table": "t"})
    out.open(None)
    out.write(rows({"n": 1}))
    out.close()
    source = PostgresSource({"url": verified, "tables": "t", "cdcMode": "logrepl"})
    assert source.plan({}, Limit())
    source.close()
    # Without TLS, with an authority that did not sign it, and with the certificate of another host
    with pytest.raises(Unavailable, match="no encryption"):
        PostgresDestination({"url": f"{secure.url}?sslmode=disable", "table": "t"}).open(None)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    unknown = f"{secure.url}?sslmode=verify-full&sslrootcert={Authority(elsewhere).ca}"
    _refused(unknown, "certificate verify failed")
    _certified(secure, tmp_path, "127.0.0.2")
    _refused(verified, "does not match host name")


def _refused(url: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        PostgresDestination({"url": url, "table": "t"}).open(None)
    with pytest.raises(SourceError, match=said):
        PostgresSource({"url": url, "tables": "t"}).plan({}, Limit())
