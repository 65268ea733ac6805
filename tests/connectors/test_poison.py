"""Records that some system cannot hold, at every destination that there is: each arrives or becomes one dead letter,
and none of them keeps the others back (SEMANTICS C10, C17, T6)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.connectors import places
from tests.connectors.places import Place
from tests.micro_batch.harness import run_once, state, write_pipeline

pytestmark = pytest.mark.xdist_group("moto")

LONG = "k" * (1 << 20)
VALUES = [
    r'"a\u0000b"', r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"', r'"\uffff\ufffe"', r'{"in": ["\u0000"]}',
    r'{"a\u0000": 1}', r'{"\ud800": 1}', "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999",
    "1" + "0" * 400, "-9223372036854775809", "18446744073709551616", "0.1" + "0" * 400, "2147483648", "true", "null",
    '""', "[]", "{}", "[[1], 2, {}]", '"' + LONG + '"', "[" * 199 + "]" * 199, r'"\\N"', r'"\\."', r'"\r\n\t\\"',
    '"infinity"', '"2026-99-99"', '"\'; DROP TABLE t; --"',
]  # fmt: skip
NAMES = ["", r"a\u0000b", r"\ud800", r"a\"b", "a'b", "a`b", "a b", "a.b", "%s", "%(v)s", ":v", "{v}", "$1", "é", "V",
         r"a\nb", "id ", "_id", "seq", "ord", "conduit.error", "x" * 300, "x" * (1 << 16)]  # fmt: skip
"""Of fields. The last one is longer than most names may be, and no longer, as a table has it in each of its
versions."""
WHOLE = ["NaN", "1", "[]", "null", '"text"', "{", "{}", '{"v": 1, "v": 2}', "\ufeff{}"]
"""Of lines."""


def poison() -> list[str]:
    """Lines, each with a mark of its own where it can have one, and a good line behind every one of them."""
    lines = [f'{{"id": "bad-{n}", "v": {value}, "w": 1}}' for n, value in enumerate(VALUES)]
    lines += [f'{{"id": {value}, "v": "key {n}"}}' for n, value in enumerate(VALUES)]
    # Names come last: each may become a column, and whatever is written after it writes that again.
    return lines + WHOLE + [f'{{"id": "bad-{n + 100}", "{name}": 1, "w": 1}}' for n, name in enumerate(NAMES)]


def with_columns(type_: str, mode: str) -> Callable[[Path, Any], Place]:
    """A table of PostgreSQL whose value has this type."""

    def made(home: Path, request: Any) -> Place:
        db = request.getfixturevalue("db")
        db.run(f"CREATE TABLE t (id text PRIMARY KEY, v {type_}, w int)")
        given = {"url": db.url, "table": "t", "mode": mode}
        return Place("postgres", given, lambda: [t for (t,) in db.run("SELECT t::text FROM t")])

    return made


def my_columns(type_: str, mode: str) -> Callable[[Path, Any], Place]:
    """A table of MariaDB whose value has this type."""

    def made(home: Path, request: Any) -> Place:
        db = request.getfixturevalue("mydb")
        key = "varchar(250) COLLATE utf8mb4_bin PRIMARY KEY" if mode == "upsert" else "longtext"
        db.run(f"CREATE TABLE t (id {key}, v {type_}, w int)")
        given = {"url": db.url, "table": "t", "mode": mode}
        return Place("mysql", given, lambda: [str(row) for row in db.run("SELECT * FROM t")])

    return made


def sql_table(columns: str, **more: str) -> Callable[[Path, Any], Place]:
    def made(home: Path, request: Any) -> Place:
        db = request.getfixturevalue("db")
        given = {"url": db.url, "table": "t", "columns": columns, **more}
        return Place("sql", given, lambda: [t for (t,) in db.run("SELECT t::text FROM t")])

    return made


def but(make: Callable[[Path, Any], Place], **more: str) -> Callable[[Path, Any], Place]:
    """The same with other settings."""

    def made(home: Path, request: Any) -> Place:
        place = make(home, request)
        return replace(place, settings={**place.settings, **{n.replace("_", "-"): v for n, v in more.items()}})

    return made


def fields_of_a_stream(home: Path, request: Any) -> Place:
    place = places.a_stream(home, request)
    client = redis.Redis.from_url(place.settings["url"])
    request.addfinalizer(client.close)
    read = lambda: [str(fields) for _, fields in client.xrange(place.settings["stream"])]  # noqa: E731
    return replace(place, settings={**place.settings, "fields": "payload"}, read=read)


NAMED = "{{ if .Payload.After.w }}%s{{ else }}{{ .Payload.After.id }}{{ end }}"
"""A place that the record names, where it is a bad one."""


def topic_by_record(home: Path, request: Any) -> Place:
    place = places.a_topic(home, request)
    return replace(place, settings={**place.settings, "topic": NAMED % place.settings["topic"]})


def table_by_record(home: Path, request: Any) -> Place:
    place = with_columns("text", "append")(home, request)
    return replace(place, settings={**place.settings, "table": NAMED % "t"})


PLACES: dict[str, Callable[[Path, Any], Place]] = {
    **{name: made for name, made in places.PLACES.items() if name not in ("mysql", "postgres")},
    "file, payload": but(places.a_file, format="payload"),
    "http, opencdc": but(places.a_service, body="opencdc"),
    "http, cloudevents in headers": but(places.a_service, body="cloudevents-binary"),
    "http, cloudevents": but(places.a_service, body="cloudevents-structured"),
    "http, cloudevents together": but(places.a_service, body="cloudevents-batched"),
    "postgres, text": with_columns("text", "upsert"),
    "postgres, jsonb": with_columns("jsonb", "upsert"),
    "postgres, json": with_columns("json", "append"),
    "postgres, numeric": with_columns("numeric", "append"),
    "postgres, table by record": table_by_record,
    "postgres, text[]": with_columns("text[]", "append"),
    "mysql, text": my_columns("longtext", "upsert"),
    "mysql, json": my_columns("json", "append"),
    "mysql, numbers": my_columns("decimal(30, 5)", "append"),
    "mysql, double": my_columns("double", "upsert"),
    "sql, postgresql": sql_table("v=.Payload.After.v, name=.Payload.After.id"),
    "sql, postgresql json": sql_table("v:json=.Payload.After.v, name=.Payload.After.id, whole:json=.Payload.After"),
    "sql, postgresql numbers": sql_table("v:float=.Payload.After.v, w:int=.Payload.After.w, name=.Payload.After.id"),
    "sql, sqlite numbers": but(places.a_table, columns="v:int=.Payload.After.v, name=.Payload.After.id"),
    "kafka, opencdc": but(places.a_topic, format="opencdc"),
    "kafka, topic by record": topic_by_record,
    "redis, payload": fields_of_a_stream,
    "s3, payload": but(places.a_bucket, format="payload"),
    "sqs, opencdc": but(places.an_sqs_queue, body="opencdc"),
    "sqs, attributes": but(places.an_sqs_queue, attributes="cloudevents.subject"),
}

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - id: in
        type: source
        plugin: file
        settings:
          path: data/a.jsonl
          format: jsonl
          settle: 0s
          key: id
          cloudevents.subject: '{{{{ .Payload.After.id }}}}'
      - id: out
        type: destination
        plugin: {plugin}
        settings: {settings}
        delivery: {{retry: 1, backoff-delay: 1ms}}
"""


@pytest.mark.proves("C10", "C17", "T6")
@pytest.mark.parametrize("name", PLACES)
def test_what_a_destination_cannot_hold_is_one_dead_letter_and_keeps_nothing_back(
    name: str, home: Path, request: pytest.FixtureRequest
) -> None:
    # Given lines that some system cannot hold, a good one behind each
    place = PLACES[name](home, request)
    write_pipeline(home, "p", PIPELINE.format(plugin=place.plugin, settings=json.dumps(place.settings)))
    bad = poison()
    (home / "data").mkdir()
    with (home / "data/a.jsonl").open("w") as file:
        for n, line in enumerate(bad):
            file.write(f'{line}\n{{"id": "good-{n:04d}", "v": null, "w": 1}}\n')
    # When the pipeline runs
    said = run_once("p")
    # Then everything is acked, and each record arrived or is a dead letter
    assert state("p").deliveries.get("out").cursor == 1, said
    assert state("p").positions.acked("in"), said
    there = place.read()
    dead = state("p").dead_letters.count("out") + state("p").dead_letters.count("")
    assert len(there) + dead == 2 * len(bad)
    # And the good ones arrived
    found = {mark for text in there for mark in re.findall(r"good-\d{4}", text)}
    assert found == {f"good-{n:04d}" for n in range(len(bad))}
