"""`avro.encode`, `avro.decode`: Confluent's wire format, with the registry built in and one over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pytest

from conduit_tasks.errors import ConfigError, RecordError, Unavailable
from conduit_tasks.processors.avro_infer import infer
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.registry import build
from conduit_tasks.processors.registry_client import open_registry
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.schemas import registry as schema_registry
from conduit_tasks.schemas.registry import RedisRegistry
from conduit_tasks.settings import settings
from tests.processors.answering import Asked, Reply, answering
from tests.processors.conftest import one, record, run, step

FLIGHT = json.dumps(
    {
        "type": "record",
        "name": "flight",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "delay", "type": ["null", "int"], "default": None},
        ],
    }
)


class Confluent:
    """As much of Confluent's schema registry as there is to ask, with a password."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}
        self.compatibility: dict[str, str] = {}

    def __call__(self, asked: Asked) -> Reply:
        if asked.headers.get("authorization") != "Basic dXNlcjpwYXNz":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match [asked.method, *unquote(asked.path).strip("/").split("/")]:
            case ["GET", "schemas", "ids", id] if int(id) <= len(self.schemas):
                return 200, {"schema": self.schemas[int(id) - 1]}
            case ["GET", "subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["GET", "subjects", subject, "versions", version] if int(version) <= len(
                self.subjects.get(subject, [])
            ):
                id = self.subjects[subject][int(version) - 1]
                return 200, {"subject": subject, "id": id, "version": int(version), "schema": self.schemas[id - 1]}
            case ["PUT", "config", subject]:
                self.compatibility[subject] = asked.json["compatibility"]
                return 200, asked.json
            case ["POST", "subjects", subject, "versions"]:
                schema = asked.json["schema"]
                if schema not in self.schemas:
                    self.schemas.append(schema)
                id = self.schemas.index(schema) + 1
                if id not in self.subjects.setdefault(subject, []):
                    self.subjects[subject].append(id)
                return 200, {"id": id}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@pytest.fixture(params=["redis", "confluent"])
def where(request: pytest.FixtureRequest, home: Path) -> Iterator[dict[str, str]]:
    """Options that name a registry."""
    if request.param == "redis":
        yield {}
        return
    with answering(Confluent()) as server:
        yield {"url": server.url, "auth.basic.username": "user", "auth.basic.password": "pass"}


def registered(where: dict[str, str], *schemas: str) -> list[int]:
    registry = open_registry(where)
    ids = [registry.register("flights", schema) for schema in schemas]
    registry.close()
    return ids


def encode(where: dict[str, str], version: str = "1", **more: str) -> Any:
    settings = {
        "schema.strategy": "preRegistered",
        "schema.preRegistered.subject": "flights",
        "schema.preRegistered.version": version,
    }
    return step("avro.encode", **{**settings, **where, **more})


def auto(where: dict[str, str], **more: str) -> Any:
    return step(
        "avro.encode", **{"schema.strategy": "autoRegister", "schema.autoRegister.subject": "made up", **where, **more}
    )


def decode(where: dict[str, str], **more: str) -> Any:
    return step("avro.decode", **{**where, **more})


def test_a_registered_schema_encodes_in_the_wire_format_and_decodes_again(where: dict[str, str]) -> None:
    _, id = registered(where, '{"type":"record","name":"other","fields":[]}', FLIGHT)
    out = one(record({"carrier": "UA", "delay": 5}), encode(where, "2"))
    assert isinstance(out.after, bytes)
    assert out.after[:5] == b"\0" + id.to_bytes(4, "big")
    assert fastavro.schemaless_reader(io.BytesIO(out.after[5:]), json.loads(FLIGHT), None) == {
        "carrier": "UA",
        "delay": 5,
    }
    assert one(record(out.after), decode(where)).after == {"carrier": "UA", "delay": 5}
    raw = one(record(b"x", key=b'{"carrier":"DL"}'), encode(where, "2", field=".Key"), decode(where, field=".Key"))
    assert raw.key == {"carrier": "DL", "delay": None}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"i": 1, "f": 1.5, "b": True, "t": "x", "n": None},
        {"l": [], "m": {}, "deep": {"any text": {"a.b": [1, None, "x"]}}},
        {"mixed": [1, "x", 2.5, None, [1], ["y"], {"k": 1}, {"k": "z"}], "least": -(1 << 63)},
    ],
)
def test_an_inferred_schema_gives_the_same_data_back(data: dict[str, Any], where: dict[str, str]) -> None:
    assert one(record(data), auto(where), decode(where)).after == data


def test_the_same_structure_is_registered_once(home: Path) -> None:
    confluent = Confluent()
    with answering(confluent) as server:
        where = {"url": server.url, "auth.basic.username": "user", "auth.basic.password": "pass"}
        chain = Chain([auto(where)])
        results = chain.run([record({"a": n}) for n in range(50)] + [record({"a": "x"})])
        chain.close()
        assert all(r.error is None for r in results)
        assert len([asked for asked in server.asked if asked.method == "POST"]) == 2
    # Inferred schemas need not fit each other
    assert confluent.compatibility == {"made up": "NONE"}


def test_the_registry_built_in_gives_ids_and_versions_as_confluents_does(home: Path) -> None:
    registry = RedisRegistry()
    whole, version = registry.register_version("a", '"int"')
    long, second = registry.register_version("a", '"long"')
    assert (version, second) == (1, 2)
    assert 0 < whole < 1 << 31
    assert whole != long
    assert registry.register_version("b", '"long"') == (long, 1)
    assert registry.register_version("a", '"int"') == (whole, 1)
    assert registry.by_version("b", 1) == (long, '"long"')
    assert registry.listed() == [("a", 1, whole), ("a", 2, long), ("b", 1, long)]
    registry.close()


def test_versions_of_before_there_was_an_index_of_them_are_found(home: Path) -> None:
    """Given a subject with any number of versions, which were stored without saying where each is, then every schema
    has the version that it had, and a new one the next."""
    registry = RedisRegistry()
    ids = [registry.register("a", f'"made up {n}"') for n in range(3)]
    client = connect(settings())
    client.delete("{conduit-schemas}:places:a")
    late = registry.register("b", '"late"')
    of_before = {str(n): str(n) for n in range(4, 5_001)} | {"4500": str(late)}
    client.hset("{conduit-schemas}:versions:a", mapping=of_before)
    assert registry.register_version("a", '"new"')[1] == 5_001
    assert [registry.register_version("a", f'"made up {n}"') for n in range(3)] == [*zip(ids, (1, 2, 3))]
    assert registry.register_version("a", '"late"') == (late, 4_500)
    assert registry.by_version("a", 5_001)[1] == '"new"'
    # And an older process, which does not know of the index, may register beside
    client.hset("{conduit-schemas}:versions:a", "5002", str(ids[0] + 1))
    assert registry.register_version("a", '"newer"')[1] == 5_003
    assert len(registry.listed()) == 5_004
    client.close()
    registry.close()


@pytest.mark.proves("T2")
def test_a_schema_that_redis_forgot_gets_its_id_again_and_no_other_does(home: Path) -> None:
    # Given a schema that something was encoded by, and a Redis that forgets it
    registry = RedisRegistry()
    id = registry.register("a", '"string"')
    client = connect(settings())
    client.delete(*client.keys("{conduit-schemas}:*"))
    client.close()
    # When another is registered first
    other = registry.register("a", '"bytes"')
    # Then it has an id of its own, and what was encoded is refused until its schema is there again
    with pytest.raises(RecordError, match=f"no schema with the id {id}"):
        registry.by_id(id)
    assert registry.register("a", '"string"') == id != other
    assert registry.by_id(id) == '"string"'
    registry.close()


def test_two_schemas_that_want_one_id_have_an_id_each(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given ids of which there are three, so that schemas share the wish for one
    monkeypatch.setattr(schema_registry, "_IDS", 3)
    registry = RedisRegistry()
    schemas = [f'"made up {n}"' for n in range(6)]
    # Then each has its own, and keeps it
    ids = [registry.register("a", schema) for schema in schemas]
    assert len(set(ids)) == len(schemas)
    assert [registry.by_id(id) for id in ids] == schemas
    assert [registry.register("a", schema) for schema in schemas] == ids
    registry.close()


def test_what_does_not_fit_is_the_records_error(where: dict[str, str]) -> None:
    [id] = registered(where, FLIGHT)
    head = b"\0" + id.to_bytes(4, "big")
    good = one(record({"carrier": "UA"}), encode(where)).after
    assert isinstance(good, bytes)
    for raw, said in [
        (b"", "does not begin"),
        (b'{"carrier": "UA"}', "does not begin"),
        (head, "not of schema"),
        (head + b"\xff\xff\xff\xff", "not of schema"),
        (good + b"\0", "goes on after"),
        (b"\0\0\0\x03\xe7", "no schema with the id 999"),
        ({"a": 1}, "not raw data"),
    ]:
        assert said in (run(record(raw), decode(where)).error or ""), raw
    for data, said in [
        ({"delay": 1}, "not of the schema"),
        (b"[1]", "not structured"),
        (b"{", "not JSON"),
        (None, "not structured"),
    ]:
        assert said in (run(record(data), encode(where)).error or ""), data
    assert "'a-b' is no name in Avro" in (run(record({"a-b": 1}), auto(where)).error or "")


def test_bytes_times_and_decimals_become_what_json_can_hold(home: Path) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    types = {
        "raw": "bytes",
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    }
    schema = {"type": "record", "name": "r", "fields": [{"name": k, "type": v} for k, v in types.items()]}
    [id] = registered({}, json.dumps(schema))
    stream = io.BytesIO()
    stream.write(b"\0" + id.to_bytes(4, "big"))
    fastavro.schemaless_writer(
        stream, schema, {"raw": b"\xff", "at": datetime(2013, 1, 1, tzinfo=UTC), "price": Decimal("12.50")}
    )
    out = one(record(stream.getvalue()), decode({}), step("json.encode", field=".Payload.After"))
    assert json.loads(out.after) == {"raw": "/w==", "at": "2013-01-01T00:00:00Z", "price": "12.50"}  # type: ignore[arg-type]


def number(value: int) -> bytes:
    """As Avro writes it."""
    value <<= 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def empty_records(levels: int) -> str:
    """Records of ten records each of ten records …, at the bottom nulls: no byte says anything."""
    inner: Any = "null"
    for level in range(levels):
        fields = [{"name": f"f{n}", "type": inner if n == 0 or level == 0 else f"r{level - 1}"} for n in range(10)]
        inner = {"type": "record", "name": f"r{level}", "fields": fields}
    return json.dumps(inner)


NODE = '{"type":"record","name":"n","fields":[{"name":"x","type":["null","n"]}]}'
DECIMAL = '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}'


@pytest.mark.proves("C4", "C13")
@pytest.mark.parametrize(
    ("schema", "body", "said"),
    [
        ('{"type":"array","items":"null"}', number(10**7) + b"\0", "larger than the 64 MiB"),
        ('{"type":"array","items":"null"}', number(10**18) + b"\0", "larger than the 64 MiB"),
        ('{"type":"array","items":"null"}', number(1 << 20) + number(1) + b"\0", "larger than the 64 MiB"),
        ('{"type":"array","items":{"type":"null"}}', number(10**9), "larger than the 64 MiB"),
        ('{"type":"array","items":{"type":"fixed","name":"f","size":0}}', number(10**9), "larger than the 64 MiB"),
        ('{"type":"array","items":{"type":"record","name":"e","fields":[]}}', number(10**9), "larger than the 64 MiB"),
        (f'{{"type":"array","items":{empty_records(3)}}}', number(70_000) + b"\0", "larger than the 64 MiB"),
        (empty_records(9), b"", "larger than the 64 MiB"),
        (NODE, b"\2" * 2_000 + b"\0", "nested deeper than 200 levels"),
        (NODE, b"\2" * 20_000 + b"\0", "nested deeper than 200 levels"),
        ('{"type":"record","name":"n","fields":[{"name":"x","type":"n"}]}', b"", "nested deeper than 200 levels"),
        (
            '{"type":"record","name":"n","fields":[{"name":"x","type":{"type":"array","items":"n"}}]}',
            b"\2" * 999,
            "deep",
        ),
        (
            '{"type":"record","name":"n","fields":[{"name":"x","type":{"type":"map","values":"n"}}]}',
            b"\2\0" * 999,
            "deep",
        ),
        (DECIMAL, number(100_000) + b"\x7f" * 100_000, "a decimal in it has 100000 bytes, 16 is the most"),
        (NODE, b"\2\2", "ends too early"),
        (NODE, b"\4", "no branch 2"),
        (NODE, b"\xff" * 11, "more than ten bytes"),
    ],
)
def test_data_that_comes_to_more_than_a_record_may_have_is_refused_before_it_is_decoded(
    schema: str, body: bytes, said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given data of which a few bytes say that there is a lot, or that it is deep
    top = f'{{"type":"record","name":"top","fields":[{{"name":"v","type":{schema}}}]}}'
    [id] = registered({}, top)

    def decoded(*_: Any) -> None:
        pytest.fail("it was handed to the decoder")

    monkeypatch.setattr(fastavro, "schemaless_reader", decoded)
    # When it is decoded, then it is the record's error
    assert said in (run(record(b"\0" + id.to_bytes(4, "big") + body), decode({})).error or "")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ('{"type":"array","items":"null"}', [None] * 100_000),
        ('{"type":"array","items":{"type":"record","name":"e","fields":[]}}', [{}] * 1000),
        (NODE, {"x": {"x": {"x": None}}}),
        ('{"type":"map","values":"null"}', {"a": None, "b": None}),
    ],
)
def test_what_a_record_may_have_is_decoded_also_of_such_schemas(schema: str, value: Any, home: Path) -> None:
    top = f'{{"type":"record","name":"top","fields":[{{"name":"v","type":{schema}}}]}}'
    [id] = registered({}, top)
    stream = io.BytesIO()
    stream.write(b"\0" + id.to_bytes(4, "big"))
    fastavro.schemaless_writer(stream, json.loads(top), {"v": value})
    assert one(record(stream.getvalue()), decode({})).after == {"v": value}


def test_a_registry_that_is_away_stops_the_task_and_nacks_nothing(home: Path) -> None:
    with answering(lambda asked: (503, {})) as server:
        with pytest.raises(Unavailable, match="503"):
            run(record({"a": 1}), auto({"url": server.url}))
        with pytest.raises(Unavailable, match="503"):
            run(record(b"\0\0\0\0\1x"), decode({"url": server.url}))
    with pytest.raises(Unavailable, match="does not answer"):
        run(record({"a": 1}), auto({"url": server.url}))


def test_a_schema_that_is_not_registered_or_a_wrong_password_stops_the_task(where: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no version 7 of the subject flights"):
        run(record({"a": 1}), encode(where, "7"))
    if where:
        with pytest.raises(ConfigError, match="401") as error:
            run(record({"a": 1}), encode({**where, "auth.basic.password": "hidden"}))
        assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schema.strategy": "guess"},
        {"schema.strategy": "preRegistered", "schema.preRegistered.version": "1"},
        {"schema.strategy": "preRegistered", "schema.preRegistered.subject": "s"},
        {"schema.strategy": "preRegistered", "schema.preRegistered.subject": "s", "schema.preRegistered.version": "0"},
        {"schema.strategy": "autoRegister"},
        {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "s", "auth.basic.username": "u"},
        {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "s", "tls.client.key": "k"},
        {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "s", "url": "localhost:8085"},
    ],
)
def test_wrong_settings_are_refused_by_name(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="option"):
        build(step("avro.encode", **settings))


def test_unions_hold_one_array_and_one_map() -> None:
    [field] = infer({"l": [[1], ["x"], {"a": 1}, {"b": None}]})["fields"]
    assert field["type"]["items"] == [
        {"type": "array", "items": ["long", "string"]},
        {"type": "map", "values": ["null", "long", "string"]},
    ]
