"""The script that makes the demo's database, on a real server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import sqlalchemy as sa

from benchmarks.postgres_server import PostgresServer
from tests.connectors.conftest import postgres  # noqa: F401 - a fixture

SCRIPT = Path(__file__).parents[2] / "compose" / "demo-database.sh"
PASSWORD = r"hush 'quoted' \1 $HOME \"x\""


def test_the_demos_password_is_set_and_is_in_no_command_line(
    tmp_path: Path,
    postgres: PostgresServer,  # noqa: F811 - as above
) -> None:
    # Given a psql, and what its shell calls, that write down what they are called with
    said = tmp_path / "said"
    for name in ("psql", "printenv"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$0 $@" >> {said}\nexec {shutil.which(name)} "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "POSTGRES_USER": "postgres",
        "POSTGRES_DB": "postgres",
        "DEMO_DATABASE_PASSWORD": PASSWORD,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGOPTIONS": "-c password_encryption=md5",
    }
    # When it runs
    subprocess.run(["sh", str(SCRIPT)], env=environment, check=True, capture_output=True, timeout=240)
    # Then the password is that of the role, which owns its database
    engine = sa.create_engine(postgres.url)
    with engine.connect() as connection:
        stored = connection.execute(sa.text("SELECT rolpassword FROM pg_authid WHERE rolname = 'demo'")).scalar_one()
        owner = connection.execute(sa.text("SELECT datdba::regrole::text FROM pg_database WHERE datname = 'demo'"))
        assert owner.scalar_one() == "demo"
    engine.dispose()
    assert stored == "md5" + hashlib.md5(f"{PASSWORD}demo".encode(), usedforsecurity=False).hexdigest()
    # And no command line had it
    assert "psql" in said.read_text()
    assert "hush" not in said.read_text()
