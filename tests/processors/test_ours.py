"""`mask`, `schema.check` and `enrich`."""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.registry import build
from tests.processors.conftest import one, record, run, step

SCHEMA = {
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer", "minimum": 0}},
    "required": ["carrier"],
    "additionalProperties": False,
}
AVRO = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "long"], "default": None},
    ],
}


def test_masked_fields_are_redacted_wherever_they_lie() -> None:
    out = one(
        record({"name": "Ada", "age": 36, "none": None}, key=b"ada"),
        step(
            "mask",
            fields=".Payload.After.name,.Payload.After.age,.Payload.After.none,.Payload.After.absent,.Key,.Metadata.kind",
        ),
    )
    assert (out.after, out.key) == ({"name": "***", "age": "***", "none": None}, b"***")
    assert out.meta()["kind"] == "***"


def test_hashes_are_equal_for_equal_values_and_need_the_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_MASK_SALT", "pepper")
    hashed = step("mask", fields=".Payload.After.name,.Key", method="hash")
    out = one(record({"name": "Ada"}, key=b"Ada"), hashed)
    assert out.after["name"] == hmac.new(b"pepper", b"Ada", hashlib.sha256).hexdigest() == out.key.decode()
    assert (
        one(record({"name": {"b": 1, "a": 2}}), hashed).after == one(record({"name": {"a": 2, "b": 1}}), hashed).after
    )
    monkeypatch.setenv("CONDUIT_MASK_SALT", "salt")
    assert one(record({"name": "Ada"}), hashed).after["name"] != out.after["name"]


def test_hashing_without_a_salt_stops_and_says_which_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINE", raising=False)
    processor = build(step("mask", fields=".Key", method="hash", **{"salt.env": "MINE"}))
    with pytest.raises(ConfigError, match="environment variable MINE"):
        processor.process(record({}, key=b"k"))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "schema", "drifted"),
    [
        (
            "json",
            SCHEMA,
            [{"delay": 1}, {"carrier": 1}, {"carrier": "UA", "delay": -1}, {"carrier": "UA", "x": 1}, b"[]", b"{"],
        ),
        (
            "avro",
            AVRO,
            [{"delay": 1}, {"carrier": 1}, {"carrier": "UA", "delay": "x"}, {"carrier": "UA", "x": 1}, b"[]", b"{"],
        ),
    ],
)
def test_drifted_records_are_quarantined_with_a_class_of_their_own(kind: str, schema: Any, drifted: list[Any]) -> None:
    check = step("schema.check", type=kind, schema=json.dumps(schema))
    for good in ({"carrier": "UA", "delay": 3}, {"carrier": "UA"}, b'{"carrier":"UA"}'):
        assert one(record(good), check).after == good
    for bad in drifted:
        result = run(record(bad), check)
        assert result.error_class == "schema", bad
        assert ".Payload.After" in (result.error or "")
    # What is drift in the middle of derived records is, too
    derived = run(
        record({"l": [{"carrier": "UA"}, {}]}),
        step("split", field=".Payload.After.l"),
        step("schema.check", field=".Payload.After.l", type=kind, schema=json.dumps(schema)),
    )
    assert (derived.error_class, derived.records) == ("schema", ())


def test_a_schema_may_not_reach_out() -> None:
    with pytest.raises(ConfigError, match="no JSON Schema"):
        build(step("schema.check", schema='{"$ref": "http://127.0.0.1:9/x.json"}'))
    for text in ("{", '{"type": "nothing"}'):
        for kind in ("json", "avro"):
            with pytest.raises(ConfigError, match="option 'schema'"):
                build(step("schema.check", type=kind, schema=text))


@pytest.fixture(params=["csv", "jsonl", "parquet", "url"])
def airlines(request: pytest.FixtureRequest, home: Path) -> dict[str, str]:
    """The same table in each form, as settings."""
    rows = [("UA", "United", 1), ("DL", "Delta", 2), (None, "Nobody", 3), ("UA", "United Airlines", 4)]
    path = home / f"airlines.{request.param}"
    if request.param == "csv":
        path.write_text("code,name,n\n" + "".join(f"{code or ''},{name},{n}\n" for code, name, n in rows))
    elif request.param == "jsonl":
        path.write_text("".join(json.dumps({"code": c, "name": name, "n": n}) + "\n\n" for c, name, n in rows))
    elif request.param == "parquet":
        codes, names, numbers = zip(*rows)
        pq.write_table(pa.table({"code": codes, "name": names, "n": numbers}), path)
    else:
        with sqlite3.connect(home / "a.db") as connection:
            connection.execute("CREATE TABLE airlines (code TEXT, name TEXT, n INTEGER)")
            connection.executemany("INSERT INTO airlines VALUES (?, ?, ?)", rows)
        connection.close()
        return {"url": f"sqlite:///{home / 'a.db'}", "query": "SELECT * FROM airlines"}
    return {"path": path.name}


def test_columns_of_the_row_with_the_key_are_added(airlines: dict[str, str]) -> None:
    join = {"on": ".Payload.After.carrier", "key": "code", **airlines}
    named = step("enrich", columns="name", **join)
    assert one(record({"carrier": "UA"}), named).after == {"carrier": "UA", "name": "United Airlines"}
    assert one(record({"carrier": "XX"}), named).after == {"carrier": "XX"}
    assert one(record({}), named).after == {}
    apart = one(record({"carrier": "DL"}), step("enrich", into=".Payload.After.airline", **join))
    assert apart.after["airline"]["name"] == "Delta"
    assert str(apart.after["airline"]["n"]) == "2"
    assert run(record({"carrier": "XX"}), step("enrich", missing="filter", **join)).filtered
    assert "no row" in (run(record({"carrier": "XX"}), step("enrich", missing="error", **join)).error or "")


def test_a_table_is_read_again_when_its_file_changed(home: Path) -> None:
    path = home / "t.csv"
    join = step("enrich", on=".Key", key="k", path="t.csv")
    path.write_text("k,v\n1,old\n")
    assert one(record({}, key=b"1"), join).after == {"v": "old"}
    path.write_text("k,v\n1,newer\n")
    assert one(record({}, key=b"1"), join).after == {"v": "newer"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "t.csv", "key": "absent"}, "no column absent"),
        ({"path": "t.csv", "max-rows": "1"}, "more than 1 rows"),
        ({"path": "gone.csv"}, "cannot be read"),
        ({"url": "sqlite:///absent/secret.db", "query": "SELECT 1"}, "option 'query' failed: OperationalError"),
    ],
)
def test_a_table_that_cannot_be_joined_stops_the_task_and_nacks_nothing(
    settings: dict[str, str], said: str, home: Path
) -> None:
    (home / "t.csv").write_text("k,v\n1,a\n2,b\n")
    with pytest.raises(Exception, match=said) as error:
        run(record({}, key=b"1"), step("enrich", **{"on": ".Key", "key": "k", **settings}))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("mask", {"fields": ".Position"}),
        ("mask", {"fields": ".Metadata"}),
        ("schema.check", {}),
        ("schema.check", {"schema": "{}", "schema.path": "x"}),
        ("schema.check", {"schema.path": "absent.json"}),
        ("enrich", {"on": ".Key", "key": "k"}),
        ("enrich", {"on": ".Key", "key": "k", "path": "x.txt"}),
        ("enrich", {"on": ".Key", "key": "k", "url": "sqlite://"}),
        ("dedupe", {"ttl": "0s"}),
        ("dedupe", {"key": "key"}),
    ],
)
def test_wrong_settings_are_refused_by_name(plugin: str, settings: dict[str, str], home: Path) -> None:
    with pytest.raises(ConfigError, match="option"):
        build(step(plugin, **settings))
