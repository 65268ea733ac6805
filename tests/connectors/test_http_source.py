"""The http source against a real server that hands out pages in each of the ways that are taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.http.connector import HttpSource
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.processors.answering import Asked, Reply, Server, answering

PAGE = 3


class Shop:
    """Orders 0, 1, …, three to a page, in every manner of paging."""

    def __init__(self) -> None:
        self.orders = [{"id": f"o{n}", "n": n} for n in range(8)]
        self.failures: list[Reply] = []
        self.url = ""

    def __call__(self, asked: Asked) -> Reply:
        if self.failures:
            return self.failures.pop(0)
        parts = urlsplit(asked.path)
        at = int(parse_qs(parts.query).get("at", ["0"])[0])
        page = self.orders[at : at + PAGE]
        following = at + len(page)
        more = following < len(self.orders)
        match parts.path:
            case "/json":
                # The last page names no next one
                return 200, {"data": {"items": page}, "next": str(following) if more else None}
            case "/always":
                return 200, {"data": {"items": page}, "next": str(following)}
            case "/record":
                after = int(parse_qs(parts.query).get("after", ["-1"])[0])
                return 200, [o for o in self.orders if o["n"] > after][:PAGE]
            case "/header":
                return 200, page, {"X-Next": str(following)} if more else {}
            case "/link":
                return 200, page, {"Link": f'<{self.url}/link?at={following}>; rel="next"'} if more else {}
            case "/etag":
                tag = f'"{len(self.orders)}"'
                if asked.headers.get("if-none-match") == tag:
                    return 304, b"", {"ETag": tag}
                return 200, self.orders, {"ETag": tag}
        return 404, b"no such page"


WAYS: dict[str, dict[str, str]] = {
    "json": {"cursor.next": "json:next", "cursor.param": "at", "records": "data.items"},
    "always": {"cursor.next": "json:next", "cursor.param": "at", "records": "data.items"},
    "record": {"cursor.next": "record:n", "cursor.param": "after"},
    "header": {"cursor.next": "header:X-Next", "cursor.param": "at"},
    "link": {"cursor.next": "link"},
}


def drain(make: Callable[[], HttpSource], position: dict[str, Any], most: int = 4) -> tuple[list[Record], Any]:
    """Micro-batches of about `most` records, each by a source of its own, until there is nothing."""
    records: list[Record] = []
    while True:
        source = make()
        slices = source.plan(position, Limit(records=most))
        if not slices:
            source.close()
            return records, position
        [slice] = slices
        assert slice.open
        for batch in source.read(slice):
            records += to_records(batch, Origin("p", "in", ""))
        position = {"": json.loads(json.dumps(source.reached(slice)))}
        source.close()


def numbers(records: list[Record]) -> list[int]:
    return [r.after["n"] for r in records if isinstance(r.after, dict)]


def source(server: Server, way: str, **more: str) -> HttpSource:
    return HttpSource({"url": f"{server.url}/{way}", **WAYS.get(way, {"cursor.next": "etag"}), **more})


@pytest.mark.proves("C9")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("most", [1, 100])
def test_every_record_comes_once_in_order_and_so_does_what_is_added(way: str, most: int) -> None:
    shop = Shop()
    with answering(shop) as server:
        shop.url = server.url
        records, position = drain(lambda: source(server, way, id="id", key="id"), {}, most)
        assert numbers(records) == list(range(8))
        assert (records[4].position, records[4].key) == (b"o4", b"o4")
        # When orders are added, to the last page and behind it
        shop.orders += [{"id": f"o{n}", "n": n} for n in range(8, 13)]
        more, position = drain(lambda: source(server, way, id="id"), position, most)
        assert numbers(more) == list(range(8, 13))
        assert drain(lambda: source(server, way), position, most)[0] == []


def test_an_answer_as_a_whole_is_read_again_when_it_changed() -> None:
    shop = Shop()
    with answering(shop) as server:
        records, position = drain(lambda: source(server, "etag"), {})
        assert numbers(records) == list(range(8))
        assert drain(lambda: source(server, "etag"), position)[0] == []
        shop.orders.append({"id": "o8", "n": 8})
        assert numbers(drain(lambda: source(server, "etag"), position)[0]) == list(range(9))
        assert len({r.position for r in records}) == 8


def test_a_tag_is_sent_back_byte_for_byte() -> None:
    tag = b'"caf\xe9\xff"'.decode("latin-1")

    def reply(asked: Asked) -> Reply:
        return (304, b"") if asked.headers.get("if-none-match") == tag else (200, [{"n": 1}], {"ETag": tag})

    with answering(reply) as server:
        records, position = drain(lambda: source(server, "etag"), {})
        assert numbers(records) == [1]
        assert drain(lambda: source(server, "etag"), position)[0] == []
        assert server.asked[-1].headers["if-none-match"] == tag


@pytest.mark.proves("C13")
def test_a_micro_batch_takes_no_more_bytes_than_its_limit_and_a_page() -> None:
    def reply(asked: Asked) -> Reply:
        at = int(parse_qs(urlsplit(asked.path).query).get("at", ["0"])[0])
        return 200, {"items": [{"n": at, "p": "x" * 10_000}], "next": at + 1}

    with answering(reply) as server, closing(source(server, "json", records="items")) as endless:
        [slice] = endless.plan({}, Limit(records=1_000, bytes=45_000))
        assert sum(batch.num_rows for batch in endless.read(slice)) == 5
        assert endless.reached(slice) == {"cursor": "5"}
        # As an older version planned it
        assert sum(batch.num_rows for batch in endless.read(replace(slice, hint=3))) == 3


@pytest.mark.proves("C10")
def test_answers_that_follow_on_the_same_one_are_other_records() -> None:
    """Given an answer that is A, B, A again, and then C, then C's records have ids of their own: a receiver that drops
    what it has would drop them with B's."""
    said = ["A"]
    found: list[Record] = []
    with answering(lambda _: (200, [{"n": said[0]}], {"ETag": said[0]})) as server:
        position: dict[str, Any] = {}
        for said[0] in "ABAC":
            records, position = drain(lambda: source(server, "etag"), position)
            found += records
    assert [r.after["n"] for r in found if isinstance(r.after, dict)] == list("ABAC")
    assert len({r.id for r in found}) == 4


def test_a_server_that_fails_for_a_moment_is_asked_again() -> None:
    shop = Shop()
    with answering(shop) as server:
        shop.failures = [(503, b""), (429, b"", {"Retry-After": "0"}), (500, b"")]
        with closing(source(server, "record")) as patient:
            assert len(patient.plan({}, Limit())) == 1
        shop.failures = [(503, b"")] * 9
        with (
            closing(source(server, "record", attempts="2")) as made,
            pytest.raises(SourceError, match="answers 503"),
        ):
            made.plan({}, Limit())
        assert len(shop.failures) == 7


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((404, b""), "answers 404"),
        ((302, b"", {"Location": "/other"}), "redirects are not followed"),
        ((200, b"<html>"), "no records"),
        ((200, {"items": {}}), "array"),
        ((200, [{"x": 1}]), "has no 'n'"),
        ((200, [{"n": {"a": 1}}]), "next cursor of .* is dict"),
        ((200, [{"n": True}]), "next cursor of .* is bool"),
        ((200, [1], {"Link": '<http://[zz]/>; rel="next"'}), "is at no URL"),
        ((200, [1], {"Link": '<http://elsewhere.example/>; rel="next"'}), "another origin"),
    ],
)
def test_an_answer_that_is_no_page_is_named_without_the_query(reply: Reply, said: str) -> None:
    with answering(lambda _: reply) as server:
        settings = (
            {"cursor.next": "link"}
            if len(reply) == 3 and "Link" in reply[2]
            else {"cursor.next": "record:n", "cursor.param": "c"}
        )
        made = HttpSource({"url": f"{server.url}/x?token=s3cret", **settings})
        with pytest.raises(SourceError, match=said) as raised:
            made.plan({}, Limit())
        made.close()
        assert "s3cret" not in str(raised.value)


def test_records_that_are_no_objects_are_raw_and_credentials_are_sent() -> None:
    with answering(lambda _: (200, ["a", 2], {"ETag": "x"})) as server:
        made = HttpSource(
            {"url": f"{server.url}/x", "cursor.next": "etag", "auth.bearer": "t", "headers.X-Team": "data"}
        )
        [slice] = made.plan({}, Limit())
        records = [r for batch in made.read(slice) for r in to_records(batch, Origin("p", "in", ""))]
        made.close()
        assert [r.after for r in records] == [b'"a"', b"2"]
        assert (server.asked[0].headers["authorization"], server.asked[0].headers["x-team"]) == ("Bearer t", "data")


def test_oauth2_fetches_a_token_and_another_when_it_is_refused() -> None:
    tokens = iter(["one", "two"])

    def reply(asked: Asked) -> Reply:
        if asked.path == "/token":
            return 200, {"access_token": next(tokens), "expires_in": 600}
        return (200, [{"n": 1}], {"ETag": "x"}) if asked.headers["authorization"] == "Bearer two" else (401, b"")

    with answering(reply) as server:
        oauth = {"token-url": f"{server.url}/token", "client-id": "us", "client-secret": "s3cret"}
        settings = {f"auth.oauth2.{name}": value for name, value in oauth.items()}
        made = HttpSource({"url": f"{server.url}/x", "cursor.next": "etag", **settings})
        assert len(made.plan({}, Limit())) == 1
        made.close()


def test_nobody_there_is_a_clear_error() -> None:
    made = HttpSource({"url": "http://127.0.0.1:1/x", "cursor.next": "etag", "attempts": "1"})
    with pytest.raises(SourceError, match="does not answer"):
        made.plan({}, Limit())
    made.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "cursor.next"),
        ({"cursor.next": "page"}, "cursor.next"),
        ({"cursor.next": "json:"}, "cursor.next"),
        ({"cursor.next": "json:next"}, "cursor.param"),
        ({"cursor.next": "etag", "url": "http://169.254.169.254/"}, "link-local"),
        ({"cursor.next": "etag", "attempts": "0"}, "attempts"),
    ],
)
def test_options_that_do_not_fit_are_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HttpSource({"url": "http://localhost/", **settings})
