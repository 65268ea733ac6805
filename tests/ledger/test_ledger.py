"""The delivery ledger as deliveries write it: every range, destination and attempt (SEMANTICS X5)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.errors import SpoolError, Unavailable
from conduit_tasks.ledger import store
from conduit_tasks.ledger.entry import SCHEMA
from conduit_tasks.ledger.query import select
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.context import open_spool, opened
from conduit_tasks.micro_batch.recorded import collect_ledger, note_unrecorded
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.spool.spool import Spool
from tests.faults.parts import drive, events
from tests.ledger.conftest import Book
from tests.micro_batch.harness import run_once, state, write_pipeline

FILE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 50}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
WEB = (
    FILE
    + """
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 5s, max-unconfirmed: 8, order-by: key}
        dead-letter-queue: {window-size: 0}
"""
)


def short(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("micro_batch", "first", "last", "outcome", "status", "error_class"))


@pytest.mark.proves("X5")
def test_each_attempt_says_what_became_of_which_records_how_long_it_took_and_by_which_file(
    home: Path, book: Book, receivers: Any
) -> None:
    # Given a target that refuses one record, and that is down at first
    receiver = receivers("--refuse", "n=3")
    receiver.mode("down")
    write_pipeline(home, "p", WEB.replace("URL", receiver.url))
    events(home / "data", 10)
    before = datetime.now(UTC)
    # When a run fails to deliver and the next one delivers
    assert isinstance(run_once("p", "first")["destinations.web"], Unavailable)
    receiver.mode("up")
    run_once("p", "second")
    # Then both attempts are in the ledger, range by range
    rows = book(destination="web")
    assert [short(row) for row in rows] == [
        (1, 0, 9, "open", "waiting", rows[0]["error_class"]),
        (1, 0, 2, "acked", "done", None),
        (1, 3, 3, "nacked", "done", "http 400"),
        (1, 4, 9, "acked", "done", None),
    ]
    assert rows[0]["error_class"] in ("http 503", "unavailable")
    assert [row["run"] for row in rows] == ["first", *["second"] * 3]
    assert {row["config"] for row in rows} == {get_pipeline("p").digest()}
    assert all(before <= row["began"] <= row["ended"] and row["seconds"] >= 0 for row in rows)
    # And the counts of an attempt stand on one of its rows, so that sums are right
    delivered = [row["delivered"] for row in rows if row["delivered"] is not None]
    assert delivered == [0, 9]
    assert sum(row["nacked"] or 0 for row in rows) == 1
    # And the other destination has its own
    assert [short(row) for row in book(destination="file")] == [(1, 0, 9, "acked", "done", None)]
    assert len(list((home / ".conduit/spool/p/ledger").rglob("*.parquet"))) == 3, "a file per attempt"


@pytest.mark.proves("X5", "C10")
def test_what_a_killed_attempt_had_confirmed_is_entered_by_the_next_one(
    home: Path, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an attempt that is killed after its first confirm of a micro-batch, before it could write
    class Killed(BaseException):
        pass

    write_pipeline(home, "p", FILE)
    events(home / "data", 20)
    confirm = Deliveries.confirm

    def killed(*args: Any, **kwargs: Any) -> Any:
        confirm(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Deliveries, "confirm", killed)
        with pytest.raises(Killed):
            run_once("p", "first")
    assert book() == []
    # When another run comes
    events(home / "data", 20, 20)
    drive()
    # Then every record of both micro-batches is accounted for once
    rows = book()
    assert [(short(row)) for row in rows] == [
        (1, 0, 19, "confirmed", "unrecorded", None),
        (2, 0, 19, "acked", "done", None),
    ]


@pytest.mark.proves("X5")
def test_a_holder_looks_for_what_is_missing_in_the_last_two_micro_batches_only(
    home: Path, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given four micro-batches that are delivered, then the next holder looks
    at the last one alone, whatever the spool still holds, and enters nothing for the others."""
    write_pipeline(home, "p", FILE)
    events(home / "data", 200)
    drive()
    assert {row["micro_batch"] for row in book()} == {1, 2, 3, 4}
    asked: list[int | None] = []
    read = Ledger.read

    def noted(*args: Any, **more: Any) -> Any:
        asked.append(more["micro_batch"])
        return read(*args, **more)

    monkeypatch.setattr(Ledger, "read", noted)
    with opened("p", "next") as context:
        note_unrecorded(context, "file")
    assert asked == [4]


@pytest.mark.proves("X5")
def test_a_full_disk_under_the_ledger_stops_no_delivery(
    home: Path, book: Book, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_pipeline(home, "p", FILE)
    events(home / "data", 5)

    def full(*_: Any) -> None:
        raise SpoolError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write", full)
        drive()
    assert state("p").deliveries.get("file").cursor == 1
    assert "missing in the ledger: no room" in caplog.text
    events(home / "data", 5, 5)
    drive()
    assert [short(row)[3:5] for row in book(micro_batch=1)] == [("confirmed", "unrecorded")]


def entry(day: datetime, m: int, attempt: str, destination: str = "a:b") -> pa.Table:
    at = int(day.timestamp() * 1e6)
    row = {"destination": destination, "micro_batch": m, "first": 0, "last": 9, "records": 10, "outcome": "acked"}
    return pa.Table.from_pylist(
        [{**row, "status": "done", "attempt": attempt, "run": "r", "began": at, "ended": at, "delivered": 10}], SCHEMA
    )


@pytest.mark.proves("X5")
def test_days_that_are_over_become_one_file_and_old_ones_go(tmp_path: Path) -> None:
    # Given attempts of today, yesterday and two months ago
    ledger = Ledger(Spool(str(tmp_path)), "p")
    now = datetime.now(UTC)
    for n, day in enumerate([now, now - timedelta(days=1), now - timedelta(days=1), now - timedelta(days=60)]):
        ledger.write(entry(day, n + 1, f"1-{n}"))
    # When the ledger is collected, again and again
    for _ in range(2):
        ledger.collect(30 * 86_400)
    # Then yesterday is one file, what is older than the retention is gone, and every row is there once
    yesterday = tmp_path / "p/ledger" / str((now - timedelta(days=1)).date())
    assert [path.name.partition("-")[0] for path in yesterday.iterdir()] == ["rolled"]
    assert [row["micro_batch"] for row in ledger.read().to_pylist()] == [2, 3, 1]
    assert [row["micro_batch"] for row in ledger.read(destination="a:b", micro_batch=3).to_pylist()] == [3]
    assert ledger.read(destination="a").num_rows == 0
    assert ledger.read(since=now.timestamp() - 3_600).num_rows == 1


@pytest.mark.proves("X5")
def test_a_crash_between_rolling_and_removing_counts_no_attempt_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(Spool(str(tmp_path)), "p")
    day = datetime.now(UTC) - timedelta(days=1)
    for n in range(3):
        ledger.write(entry(day, n + 1, f"1-{n}"))
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "remove", lambda *_: None)
        for _ in range(2):
            ledger.collect(1e9)
    assert len(list((tmp_path / "p/ledger").rglob("*.parquet"))) == 5
    assert ledger.read().num_rows == 3
    ledger.collect(1e9)
    assert len(list((tmp_path / "p/ledger").rglob("*.parquet"))) == 1
    assert ledger.read().num_rows == 3


@pytest.mark.parametrize(
    ("since", "found"),
    [(-62_135_683_140.0, 3), (-1e12, 3), (253_402_300_800.0, 0), (1e12, 0)],
    ids=["a day before year 1", "long before", "at the end of year 9999", "long after"],
)
def test_a_time_beyond_all_dates_is_before_or_after_everything(tmp_path: Path, since: float, found: int) -> None:
    """Given a time that no date can hold, as a far zone or rounding makes it, then all is later than it, or nothing."""
    ledger = Ledger(Spool(str(tmp_path)), "p")
    for n in range(3):
        ledger.write(entry(datetime.now(UTC), n, str(n), "a"))
    assert ledger.read(since=since).num_rows == found
    assert ledger.newest(9, since=since)[0].num_rows == found


@pytest.mark.parametrize("rolled", [False, True])
def test_the_newest_attempts_are_read_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled: bool
) -> None:
    """Given twenty attempts of yesterday, each in a file or all in one, and twenty of today, then the newest three take
    a bounded portion, what is asked for is exact, and all of them are what `read` gives."""
    monkeypatch.setattr(store, "FILES", 4)
    monkeypatch.setattr(store, "GROUP", 4)
    monkeypatch.setattr(store, "ENOUGH", 1)
    ledger = Ledger(Spool(str(tmp_path)), "p")
    today = datetime.now(UTC)
    for days in (1, 0):
        for m in range(1, 21):
            day = today - timedelta(days=days)
            ledger.write(entry(day, m + 20 * (1 - days), f"{days}-{m}", "a" if m % 2 else "b"))
    if rolled:
        ledger.collect(9 * 86_400)
    read: list[str] = []
    opened = Ledger._opened

    def counting(self: Ledger, day: Any, name: str) -> Any:
        read.append(name)
        return opened(self, day, name)

    monkeypatch.setattr(Ledger, "_opened", counting)
    found, whole = ledger.newest(3)
    assert (found["micro_batch"].to_pylist()[:3], whole) == ([40, 39, 38], False)
    assert len(read) == 8
    found, whole = ledger.newest(30, "b")
    assert found["micro_batch"].to_pylist() == list(range(40, 0, -2))
    assert whole
    assert ledger.newest(5, micro_batch=7)[0]["attempt"].to_pylist() == ["1-7"]
    assert ledger.newest(50)[0].sort_by("micro_batch") == ledger.read().sort_by("micro_batch").combine_chunks()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    ledger = Ledger(Spool(str(tmp_path)), "p")
    ledger.write(entry(datetime.now(UTC), 1, "1-1"))
    (path,) = (tmp_path / "p/ledger").rglob("*.parquet")
    path.write_bytes(b"nonsense")
    with pytest.raises(SpoolError, match=r"@1-1.parquet is no file of the ledger"):
        ledger.read()


@pytest.mark.proves("X5")
def test_the_ledger_answers_sql_and_tells_a_records_history(home: Path, receivers: Any, conduit: Any) -> None:
    # Given a record that a target refused at the second attempt, delivered elsewhere at the first
    receiver = receivers("--refuse", "n=3")
    receiver.mode("down")
    write_pipeline(home, "p", WEB.replace("URL", receiver.url))
    events(home / "data", 10)
    run_once("p", "first")
    receiver.mode("up")
    run_once("p", "second")

    # When it is asked for by SQL
    sql = "SELECT destination, SUM(delivered) AS delivered, COUNT(*) AS attempts FROM attempts GROUP BY 1 ORDER BY 1"
    done = conduit("ledger", "p", "--sql", sql, "--format", "json")
    # Then the answer is the query's
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [
        {"destination": "file", "delivered": 10, "attempts": 1},
        {"destination": "web", "delivered": 9, "attempts": 2},
    ]
    # When one record is asked for, by micro-batch and index, by number, or by its id
    dead = json.loads(conduit("dead-letters", "list", "p", "--format", "json").stdout)
    for named in (
        ["--micro-batch", "1", "--index", "3"],
        ["--micro-batch", "1", "--seq", "3"],
        ["--record", dead[0]["id"]],
    ):
        history = json.loads(conduit("ledger", "p", *named, "--format", "json").stdout)
        # Then it is every attempt at each destination
        assert sorted((row["destination"], row["run"], row["outcome"]) for row in history) == [
            ("file", "first", "acked"),
            ("web", "first", "open"),
            ("web", "second", "nacked"),
        ]
    text = conduit("ledger", "p", "--destination", "web", "--since", "1h")
    assert "nacked" in text.stdout
    assert conduit("ledger", "p", "--since", "0s", "--format", "json").stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sql", "SELECT colour FROM ledger"], "no such column: colour"),
        (["--sql", "DELETE FROM ledger"], "readonly"),
        (["--since", "yesterday"], "--since: 'yesterday' is neither a date"),
        (["--index", "3"], "give --micro-batch too"),
        (["--micro-batch", "7", "--index", "3"], "micro-batch 7 of p is not in the spool"),
        (["--record", "abc"], "no record abc"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(home: Path, conduit: Any, arguments: list[str], says: str) -> None:
    write_pipeline(home, "p", FILE)
    done = conduit("ledger", "p", *arguments)
    assert done.exit_code == 1
    assert says in str(done.exception)


def test_a_query_sees_times_as_text_and_counts_per_attempt() -> None:
    names, rows = select(entry(datetime(2026, 1, 31, 9, tzinfo=UTC), 1, "1-1"), "SELECT began, delivered FROM attempts")
    assert (names, rows) == (["began", "delivered"], [("2026-01-31T09:00:00.000000+00:00", 10)])


def test_the_ledger_is_collected_with_the_acks(home: Path, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(home, "p", FILE)
    events(home / "data", 5)
    drive()
    assert len(book()) == 1
    old = home / ".conduit/spool/p/ledger/2020-01-01"
    old.mkdir()
    from conduit_tasks.micro_batch.context import opened

    with opened("p", "r") as context:
        collect_ledger(context)
    assert not old.exists()
    assert len(book()) == 1
    assert open_spool(get_pipeline("p")).micro_batches("p") == [1]
