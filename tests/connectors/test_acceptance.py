"""The acceptance suite: our own connectors pass it, and every way to break the contract is seen."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import (
    Limit,
    Position,
    Slice,
)
from conduit_tasks.connectors.log import LOGGER
from conduit_tasks.errors import ConfigError, Unavailable
from conduit_tasks.record.record import Record
from tests.connectors.memory import (  # noqa: F401 - a fixture
    ACKED,
    SETTINGS,
    STORE,
    MemoryBatches,
    MemoryDestination,
    MemorySource,
    accepted,
    empty,
)

# --- our own connectors


@pytest.mark.parametrize("format", ["opencdc", "payload"])
def test_files_keep_the_contract(home: Path, format: str) -> None:
    both = {"path": "out/events.jsonl"}
    report = accept("file", source={**both, "format": "jsonl"}, destination={**both, "format": format}).require()
    untried = {check.name for check in report.checks if check.passed is None}
    assert untried == {
        "what is written again after a crash before its confirmation is there once",
        "what was written is read back, each record once",
    }, "where there is a source, it is the one that tells"


@pytest.mark.parametrize("format", ["text", "csv"])
def test_files_that_others_write_keep_the_contract(home: Path, format: str) -> None:
    def append(records: Sequence[Record]) -> None:
        with (home / "in.txt").open("ab") as file:
            file.writelines(b"%s,%d\n" % (r.after["id"].encode(), r.after["n"]) for r in records)  # type: ignore[call-overload,index]

    (home / "in.txt").write_text("id,n\n" if format == "csv" else "")
    accept("file", source={"path": "in.txt", "format": format, "slice-bytes": "200"}, feed=append).require()


def test_the_generator_keeps_the_contract() -> None:
    settings = {"recordCount": "500", "format.type": "raw", "format.options.id": "int", "operations": "create,delete"}
    report = accept("generator", settings).require()
    assert {c.name: c.passed for c in report.checks}["what comes later is read from there, and only that"] is None


def test_the_log_keeps_the_contract(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        accept("log", read_back=lambda: [each.getMessage() for each in caplog.records]).require()


def test_http_keeps_the_contract_on_both_sides() -> None:
    # Given a service that keeps what it is sent, and hands it out in pages
    bodies: list[bytes] = []

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            after = int(self.path.partition("after=")[2] or 0)
            page = [{"seq": n, "event": json.loads(body)} for n, body in enumerate(bodies, 1) if n > after][:20]
            answer = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            url = {"url": f"http://127.0.0.1:{server.server_port}/"}
            paged = {"cursor.param": "after", "cursor.next": "record:seq"}
            accept("http", source={**url, **paged}, destination=url).require()
            # And the destination alone
            accept("http", destination=url, read_back=lambda: bodies, records=10).require()
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_tables_keep_the_contract(home: Path, mode: str) -> None:
    url = f"sqlite:///{home}/t.db"

    def rows() -> list[Any]:
        engine = sa.create_engine(url)
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(sa.text("SELECT payload FROM events"))]
        finally:
            engine.dispose()

    accept("sql", destination={"url": url, "table": "events", "mode": mode}, read_back=rows).require()


@pytest.mark.parametrize("destination", [MemoryDestination, MemoryBatches])
def test_a_sound_connector_passes(destination: Any) -> None:
    report = accepted(destination=destination).require()
    assert report.connector == "memory"
    assert {check.side for check in report.checks} == {"source", "destination"}
    # And acks never overtook what was read
    ends = [position.get("", 0) for position in ACKED]
    assert ends == sorted(ends)
    assert max(ends) <= len(STORE)


class Moving(MemorySource):
    failures: ClassVar[list[Unavailable]] = []

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        if self.failures:
            raise self.failures.pop()
        return super().plan(position, limit)


def test_a_source_that_is_away_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Unavailable("the coordinator is gone")
    monkeypatch.setattr(Moving, "failures", [gone] * 3)
    accept(SimpleNamespace(SOURCE=Moving), SETTINGS, feed=STORE.extend, wait=60).require()
    assert not Moving.failures
    # And one that stays away is told
    monkeypatch.setattr(Moving, "failures", [gone] * 1_000)
    report = accept(SimpleNamespace(SOURCE=Moving), SETTINGS, feed=STORE.extend, wait=0.2)
    assert "the coordinator is gone" in report.failures()[0].why


def test_a_side_without_the_other_is_tried_with_what_feeds_it_or_reads_it_back() -> None:
    accept(SimpleNamespace(SOURCE=MemorySource), SETTINGS, feed=STORE.extend).require()
    STORE.clear()
    accept(SimpleNamespace(DESTINATION=MemoryDestination), SETTINGS, read_back=lambda: STORE).require()
    STORE.clear()
    report = accept(SimpleNamespace(SOURCE=MemorySource), SETTINGS)
    assert "there is nothing to read" in report.failures()[0].why


def test_settings_that_belong_to_neither_side_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no option 'lits'"):
        accept(SimpleNamespace(SOURCE=MemorySource), {"lits": "a"})
    with pytest.raises(ConfigError, match="no such side"):
        accept("log", source={})
    with pytest.raises(ConfigError, match=r"SOURCE of .* is not a class"):
        accept(SimpleNamespace(SOURCE=MemoryDestination), {})
