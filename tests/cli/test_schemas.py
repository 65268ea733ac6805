"""`conduit schemas`: what `avro.encode` with preRegistered needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Record
from tests.processors.conftest import one, step

FLIGHT = {"type": "record", "name": "flight", "fields": [{"name": "carrier", "type": "string"}]}


def conduit(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["schemas", *map(str, words)])


def test_a_schema_is_registered_listed_shown_and_used(home: Path) -> None:
    # Given a schema in a file
    file = home / "flight.avsc"
    file.write_text(json.dumps(FLIGHT, indent=2))
    # When it is registered, twice
    said = [conduit("register", "flights", file).stdout for _ in range(2)]
    id = int(said[0].rpartition(" ")[2])
    assert said == [f"flights: version 1, id {id}\n"] * 2
    # Then it is there under its subject
    conduit("register", "others", file)
    listed = json.loads(conduit("list", "--subject", "flights", "--format", "json").stdout)
    assert listed == [{"subject": "flights", "version": 1, "id": id}]
    words = ["SUBJECT", "VERSION", "ID", "flights", "1", str(id), "others", "1", str(id)]
    assert conduit("list").stdout.split() == words
    assert json.loads(conduit("show", "flights").stdout) == FLIGHT
    # And records are encoded by it
    settings = {"schema.strategy": "preRegistered", "schema.preRegistered.subject": "flights"}
    encode = step("avro.encode", **settings, **{"schema.preRegistered.version": "1"})
    assert one(Record(b"1", after={"carrier": "UA"}), encode).after == b"\0" + id.to_bytes(4) + b"\4UA"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("register", "s", "absent.avsc"), "absent.avsc cannot be read"),
        (("register", "s", "torn.avsc"), "torn.avsc cannot be read"),
        (("register", "s", "wrong.avsc"), "wrong.avsc is no Avro schema"),
        (("show", "nothing"), "no subject nothing"),
    ],
)
def test_what_is_wrong_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(home)
    (home / "torn.avsc").write_text("{")
    (home / "wrong.avsc").write_text('{"type": "nonsense"}')
    done = conduit(*words)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
