"""The http source on pages that are empty, shrink, or name the next one with a key of ours in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.http import source as http_source
from conduit_tasks.connectors.http.connector import HttpSource
from conduit_tasks.errors import SourceError
from tests.connectors.test_http_source import drain, numbers
from tests.processors.answering import Asked, Reply, Server, answering

Pages = dict[str, tuple[list[int], str | None]]


def serving(pages: Pages) -> Callable[[Asked], Reply]:
    def reply(asked: Asked) -> Reply:
        found, following = pages[parse_qs(urlsplit(asked.path).query).get("at", ["0"])[0]]
        return 200, {"items": [{"n": n} for n in found], "next": following}

    return reply


def paged(server: Server) -> Callable[[], HttpSource]:
    settings = {"url": server.url, "cursor.next": "json:next", "cursor.param": "at", "records": "items"}
    return lambda: HttpSource(settings)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("most", [1, 100])
def test_empty_pages_that_name_a_next_one_are_passed_over(most: int) -> None:
    pages: Pages = {"0": ([1], "1"), "1": ([], "2"), "2": ([], "3"), "3": ([2], "4"), "4": ([], None)}
    with answering(serving(pages)) as server:
        records, position = drain(paged(server), {}, most)
        assert numbers(records) == [1, 2]
        # And so is a last page that is full by now, and one that was empty
        pages |= {"4": ([3], None)}
        more, position = drain(paged(server), position, most)
        pages |= {"4": ([3], "5"), "5": ([], "6"), "6": ([4], None)}
        more += drain(paged(server), position, most)[0]
        assert numbers(more) == [3, 4]


@pytest.mark.proves("C10")
def test_a_long_row_of_empty_pages_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "SKIPPED", 3)
    pages: Pages = {str(n): ([], str(n + 1)) for n in range(20)} | {"20": ([7], None)}
    with answering(serving(pages)) as server:
        records, position = drain(paged(server), {})
        assert numbers(records) == [7]
        server.asked.clear()
        assert drain(paged(server), position)[0] == []
        assert len(server.asked) == 1


@pytest.mark.proves("C10")
def test_a_page_that_shrinks_is_an_error_that_says_so_and_not_a_loss() -> None:
    pages: Pages = {"0": ([1, 2, 3], None)}
    with answering(serving(pages)) as server:
        records, position = drain(paged(server), {})
        assert numbers(records) == [1, 2, 3]
        pages["0"] = ([4, 5], None)
        with closing(paged(server)()) as source, pytest.raises(SourceError, match="held 3 records and now holds 2"):
            source.plan(position, Limit())


@pytest.mark.proves("C9")
def test_the_key_in_the_query_is_neither_logged_nor_kept_and_sent_with_every_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def reply(asked: Asked) -> Reply:
        query = parse_qs(urlsplit(asked.path).query)
        if query.get("api_key") != ["S3CRET"]:
            return 403, b""
        at = int(query["page"][0])
        following = f'<{server.url}/?api_key=S3CRET&page={at + 1}&size=1>; rel="next"'
        return 200, [{"n": at}], {"Link": following} if at < 4 else {}

    with answering(reply) as server:
        url = f"{server.url}/?api_key=S3CRET&page=1"
        records, position = drain(lambda: HttpSource({"url": url, "cursor.next": "link"}), {}, 1)
    assert numbers(records) == [1, 2, 3, 4]
    kept: Any = position[""]
    assert kept == {"url": f"{server.url}/?page=4&size=1", "with": ["api_key"], "seen": 1}
    assert "S3CRET" not in caplog.text + json.dumps(position) + str(records)
