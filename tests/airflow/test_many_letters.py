"""Views of many dead letters cost what is new, not what is there: files are read once, and records only if shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.dead_letters import index_entries
from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters import columns, kept
from conduit_tasks.dead_letters.book import read_book
from conduit_tasks.dead_letters.issues import issue_ids
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection, is_key
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore, row_key
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.resend.select import record_of, shares
from conduit_tasks.settings import settings
from tests.airflow.api_client import ASK, PIPELINE, airflow, api, broker_of
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "api"]
BASE = "/v1/pipelines/p"
LETTERS = f"{BASE}/dead-letters"
MANY = int(os.environ.get("CONDUIT_TEST_LETTERS", "20000"))
"""Letters of the test of CPU time; with 100000 it prints the figures of the changelog."""


def letter(
    n: int, batch: int, *, epoch: int = 0, at: float | None = None, node: str = "destinations.web"
) -> DeadLetter:
    key: Any = {"id": n % 7} if n % 2 else f"k{n % 7}".encode() if n % 3 else b"\xff\xfe"
    record = Record(b"%d" % n, "create", {}, key, None, {"n": n}, 0, Origin("p", "in", "a.jsonl", {}))
    error = f"record {n} was refused: '{n % 5}'" if n % 4 else f"{n} has no name"
    said = 1_790_000_000.0 + 1_000 * n if at is None else at
    return DeadLetter(batch, n, record, node, error, "http 400" if n % 3 else "http 422", 1, epoch, said, n)


def put(*letters: DeadLetter, destination: str = "web", broker: Broker | None = None) -> None:
    """Stores letters, in a file of their own, and indexes them."""
    DeadLetterStore(root(), "p", None if destination == BEFORE_FAN_OUT else destination).store(letters)
    broker = broker or broker_of("p")
    key = broker.keys.dead("" if destination == BEFORE_FAN_OUT else destination)
    for n in range(0, len(letters), 1_000):
        broker.redis.hset(key, items=index_entries(letters[n : n + 1_000]))


def root() -> str:
    return settings().path(settings().dead_letters)


@pytest.fixture
def pipeline(home: Path) -> None:
    write_pipeline(home, "p", PIPELINE.replace("URL", "http://127.0.0.1:1/"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of letters that were read, as they are read."""
    out: list[str] = []

    def note(name: str) -> None:
        method = getattr(DeadLetterStore, name)

        def noted(self: DeadLetterStore, path: str, *of: Any) -> Any:
            out.append(path.rpartition("/")[2])
            return method(self, path, *of)

        monkeypatch.setattr(DeadLetterStore, name, noted)

    note("table")
    note("extract")
    columns._kept.clear()
    yield out
    columns._kept.clear()


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_file_is_read_once_and_a_letter_s_record_from_its_own(api: Any, pipeline: None, read: list[str]) -> None:
    for batch in range(1, 31):
        put(letter(batch, batch))
    assert ok(api.get(LETTERS))["total"] == len(read) == 30
    read.clear()
    # Then nothing is read again, whatever is asked
    assert ok(api.get(LETTERS, params={"error_class": "http 422"}))["total"] == 10
    issue = ok(api.get(f"{BASE}/issues"))["items"][0]
    ok(api.post(f"{BASE}/issues/{issue['id']}", json={"state": "acknowledged"}, headers=ASK))
    body = {"dry_run": True, "issues": [issue["id"]]}
    said = ok(api.post(f"{LETTERS}/redrive", json=body, headers=ASK))
    assert said["shares"] == [{"destination": "web", "letters": issue["count"], "parked": 0}]
    assert datetime.fromisoformat(said["at"]).tzinfo == UTC
    assert read == []
    # A letter's page reads the one file that has it
    assert ok(api.get(f"{LETTERS}/web/0/7/7/0"))["record"]["payload"]["after"] == {"n": 7}
    assert [name.partition("-")[0] for name in read] == ["0000000007"]
    assert api.get(f"{LETTERS}/web/0/7/8/0").status_code == api.get(f"{LETTERS}/file/0/7/7/0").status_code == 404
    # And of what is new, only that
    read.clear()
    put(letter(40, 40))
    assert ok(api.get(LETTERS))["total"] == 31
    assert [name.partition("-")[0] for name in read] == ["0000000040"]


def test_a_letter_that_is_stored_again_settled_or_removed_is_seen_at_once(
    api: Any, pipeline: None, read: list[str]
) -> None:
    put(letter(1, 1), letter(2, 1))
    put(letter(3, 2))
    assert ok(api.get(LETTERS))["total"] == 3
    # The same letters replace their file
    put(replaced := letter(3, 2, at=1_790_009_999.5))
    assert [row["at"] for row in ok(api.get(LETTERS))["items"]][2] == "2026-09-21T16:59:59.500000Z"
    # A copy in another file counts once
    put(replaced, letter(4, 2))
    assert [row["seq"] for row in ok(api.get(LETTERS))["items"]] == [1, 2, 3, 4]
    Marks(root(), "p").write("web", [Settled((0, 1, 2, 0), "redriven", 7, 1_790_000_001.0, "ann")])
    assert [row["seq"] for row in ok(api.get(LETTERS))["items"]] == [1, 3, 4]
    assert api.get(f"{LETTERS}/web/0/1/2/0").status_code == 404
    Marks(root(), "p").remove("web", {(0, 1, 2, 0)})
    assert ok(api.get(LETTERS))["total"] == 4
    DeadLetterStore(root(), "p").remove("web", {(0, 1, 1, 0), (0, 2, 3, 0)})
    assert [row["seq"] for row in ok(api.get(LETTERS))["items"]] == [2, 4]


def test_two_pipelines_are_held_beside_each_other_within_their_bytes(
    home: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p", "q"):
        DeadLetterStore(root(), name, "web").store([letter(1, 1)])
    for _ in range(2):
        for name in ("p", "q"):
            assert columns.look(root(), name).open.num_rows == 1
    assert len(read) == 2, "neither puts the other one out"
    monkeypatch.setattr(columns, "MOST", columns._kept[root(), "p"].bytes)
    for name in ("q", "p", "p"):
        columns.look(root(), name)
    assert len(read) == 3, "the one that was not asked for longest went, and the last one stays"


def test_a_file_that_goes_while_it_is_read_is_no_error_and_a_broken_one_is_named(
    pipeline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(letter(1, 1), letter(2, 1))
    extract = DeadLetterStore.extract

    def gone(self: DeadLetterStore, path: str) -> Any:
        monkeypatch.setattr(DeadLetterStore, "extract", extract)
        DeadLetterStore(root(), "p").remove("web", {(0, 1, 1, 0)})
        return extract(self, path)

    monkeypatch.setattr(DeadLetterStore, "extract", gone)
    assert columns.Columns(root(), "p").look().open["seq"].to_pylist() == [2]
    next(Path(root()).rglob("*.parquet")).write_bytes(b"torn")
    with pytest.raises(ConduitError, match="is no file of dead letters"):
        columns.Columns(root(), "p").look()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in five files is kept."""
    monkeypatch.setattr(kept, "FILES", 5)


def seqs_of_a_new_process() -> list[int]:
    found: list[int] = columns.Columns(root(), "p").look().open["seq"].to_pylist()
    return found


def test_a_process_that_looks_first_reads_what_another_has_found(pipeline: None, read: list[str], few: None) -> None:
    for batch in range(1, 8):
        put(letter(batch, batch), letter(100 + batch, batch))
    before = columns.look(root(), "p")
    assert (len(read), before.open.num_rows) == (7, 14)
    read.clear()
    # Then the next one reads that, and sees the same
    after = columns.Columns(root(), "p").look()
    assert (read, after.letters.equals(before.letters)) == ([], True)
    assert after.find("web", (0, 3, 103, 0)) == before.find("web", (0, 3, 103, 0)) is not None
    # And of what is new, or stored again, only that; and of marks what they say now
    put(letter(8, 8))
    put(letter(1, 1, at=1_790_009_999.5), letter(101, 1))
    Marks(root(), "p").write("web", [Settled((0, 2, 2, 0), "redriven", 7, 1_790_000_001.0, "ann")])
    assert seqs_of_a_new_process() == [1, 101, 102, 3, 103, 4, 104, 5, 105, 6, 106, 7, 107, 8]
    assert [name.partition("-")[0] for name in read] == ["0000000001", "0000000008"]
    # And of one destination alone, too
    read.clear()
    put(letter(9, 9), destination="file")
    assert columns.Columns(root(), "p", "file").look().open["seq"].to_pylist() == [9]
    assert [name.partition("-")[0] for name in read] == ["0000000009"]


def test_what_is_given_up_for_good_is_kept_nowhere(pipeline: None, read: list[str], few: None) -> None:
    for batch in range(1, 8):
        put(letter(batch, batch), letter(100 + batch, batch))
    old = columns.Columns(root(), "p")
    old.look()
    kept_there = Path(root(), "p", "_columns")
    [file] = kept_there.iterdir()
    stale = file.read_bytes()
    DeadLetterStore(root(), "p").remove("web", {(0, 3, 3, 0)})
    assert not kept_there.exists()
    # Also where somebody who was just looking writes it once more: the next look corrects it
    kept_there.mkdir()
    file.write_bytes(stale)
    expected = [1, 101, 2, 102, 103, 4, 104, 5, 105, 6, 106, 7, 107]
    assert seqs_of_a_new_process() == old.look().open["seq"].to_pylist() == expected
    assert 3 not in pq.read_table(file)["seq"].to_pylist()


@pytest.mark.parametrize("how", ["torn", "of another version", "not to be written"])
def test_what_is_kept_may_be_wrong_or_missing(
    pipeline: None, read: list[str], few: None, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(1, 8):
        put(letter(batch, batch))
    folder = Path(root(), "p", "_columns")
    if how == "not to be written":
        folder.write_text("")
    else:
        seqs_of_a_new_process()
        [file] = folder.iterdir()
        if how == "torn":
            file.write_bytes(file.read_bytes()[:100])
        else:
            monkeypatch.setattr(kept, "VERSION", kept.VERSION + 1)
    read.clear()
    assert seqs_of_a_new_process() == [*range(1, 8)]
    assert len(read) == 7
    if how != "not to be written":
        read.clear()
        assert seqs_of_a_new_process() == [*range(1, 8)]
        assert (read, len([*folder.iterdir()])) == ([], 1)


SELECTIONS = [
    Selection(),
    Selection("web"),
    Selection("file"),
    Selection(BEFORE_FAN_OUT),
    Selection(classes=("http 422",)),
    Selection(keys=("k1", '{ "id": 3 }')),
    Selection(keys=("//4=",)),
    Selection(micro_batches=(2, 9), classes=("http 400", "http 422")),
    Selection(since=datetime.fromtimestamp(1_790_010_000, UTC), until=datetime.fromtimestamp(1_790_020_000, UTC)),
]


def takes(s: Selection, row: dict[str, Any], issue: str) -> bool:
    """Whether a letter of the store is selected, told from its row alone."""
    return (
        s.destination in (None, row["destination"])
        and (not s.classes or row["error_class"] in s.classes)
        and (s.since is None or row["at"] >= s.since)
        and (s.until is None or row["at"] < s.until)
        and (not s.micro_batches or row["micro_batch"] in s.micro_batches)
        and (not s.ids or row["id"] in s.ids)
        and (not s.issues or issue in s.issues)
        and (not s.keys or is_key(json.loads(row["record"])["key"], s.keys))
    )


@pytest.mark.proves("X2")
def test_what_is_sent_are_all_open_letters_of_the_records_that_were_chosen(pipeline: None) -> None:
    # Given letters of several epochs, of a replay, from before the fan-out, of no destination, settled, and not indexed
    put(*(letter(n, 1) for n in range(20)))
    put(*(letter(n, 1, epoch=3, at=1_790_015_000.0) for n in range(4, 8)))
    put(*(letter(n, 0, epoch=e, at=1_790_000_000.0 + (e - 4) * 15_000) for n in range(6) for e in (4, 5)))
    put(letter(30, 2), letter(31, 2), destination="gone")
    sealed = broker_of("p")
    sealed.redis.hset(sealed.keys.pipeline, "sealed", "5")
    put(letter(40, 3, node="processors/x"), letter(41, 3, node="sources.away/x"), destination=BEFORE_FAN_OUT)
    put(letter(42, 9, node="processors/x"), destination=BEFORE_FAN_OUT)
    DeadLetterStore(root(), "p", "web").store([letter(50, 1)])
    look = columns.Columns(root(), "p").look()
    ids = Selection(ids=(letter(5, 1).record.id, letter(3, 0).record.id))
    issues = Selection(issues=tuple(look.letters["issue"].unique().to_pylist()[:1]))
    store = DeadLetterStore(root(), "p")
    rows = store.rows()
    told = dict(
        zip(map(record_key, rows), issue_ids(*([row[n] for row in rows] for n in ("node", "error_class", "error"))))
    )
    with opened("p", "look") as context:
        book = read_book(store, Marks(root(), "p"), context.broker)
        assert len(book.entries) == look.letters.num_rows == len(rows)
        is_open = {(entry.destination, entry.key) for entry in book.entries if entry.open}
        assert len(is_open) == len(rows) - 2, "one is not indexed, and one of a micro-batch that is not sealed"
        for selection in (*SELECTIONS, ids, issues):
            mine = [row for row in rows if record_key(row) in is_open]
            chosen = [row for row in mine if takes(selection, row, told[record_key(row)])]
            found, said = shares(context, selection, look=look if selection.destination is None else None)
            assert [entry.key for entry in book.select(selection)] == [row_key(row) for row in chosen]
            # Before the fan-out a record is told by its place; one whose source is gone cannot go
            before = {row["micro_batch"] for row in chosen if row["destination"] == BEFORE_FAN_OUT and row["seq"] == 40}
            sent = {(row["destination"], record_of(row)) for row in chosen if row["destination"] == "web"}
            web = [row_key(row) for row in mine if (row["destination"], record_of(row)) in sent]
            expected = [(BEFORE_FAN_OUT, [(0, batch, 40, 0)]) for batch in before]
            expected += (
                [("web", sorted(web, key=lambda key: (key[1], 0 if key[1] else key[0], *key[2:])))] if web else []
            )
            assert [(s.destination, [row_key(row) for row in s.rows]) for s in found] == expected, selection
            gone = sum(row["destination"] == "gone" for row in chosen)
            assert gone == 0 or said[0].startswith(f"{gone} dead letter(s) belong to gone"), said


def record_key(row: dict[str, Any]) -> tuple[str, Any]:
    return row["destination"], row_key(row)


def test_one_letter_is_found_without_the_files_of_other_micro_batches(pipeline: None, read: list[str]) -> None:
    for batch in range(1, 11):
        put(letter(batch, batch))
        put(letter(100 + batch, batch, epoch=2))
    row = DeadLetterStore(root(), "p").live("web", 4, 4, 0)
    assert row is not None
    assert (row["epoch"], row["seq"], len(read)) == (0, 4, 2)
    assert DeadLetterStore(root(), "p").live("web", 4, 5, 0) is None


@pytest.mark.slow
@pytest.mark.parametrize("files", [10, 1_000])
def test_no_look_costs_a_second_of_cpu(
    api: Any, pipeline: None, read: list[str], files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    per = MANY // files
    broker = broker_of("p")
    for batch in range(files):
        put(*(letter(batch * per + n, batch + 1) for n in range(per)), broker=broker)
    last = f"{LETTERS}/web/0/{files}/{files * per - 1}/0"

    def cost(name: str, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = ok(call())
        took[name] = round(time.process_time() - began, 2)
        return found

    took: dict[str, float] = {}
    cost("first", lambda: api.get(LETTERS))
    cost("list", lambda: api.get(LETTERS))
    [issue, *_] = cost("issues", lambda: api.get(f"{BASE}/issues"))["items"]
    cost("letters of an issue", lambda: api.get(LETTERS, params={"issue": issue["id"]}))
    assert cost("letter", lambda: api.get(last))["seq"] == files * per - 1
    decision = {"state": "acknowledged"}
    cost("decide", lambda: api.post(f"{BASE}/issues/{issue['id']}", json=decision, headers=ASK))
    for name, chosen in (("issue", {"issues": [issue["id"]]}), ("all", {}), ("key", {"keys": ["k1"]})):
        body = {"dry_run": True, **chosen}
        cost(f"would send {name}", partial(api.post, f"{LETTERS}/redrive", json=body, headers=ASK))
    put(letter(files * per, files + 1))
    assert cost("one more", lambda: api.get(LETTERS))["total"] == files * per + 1
    # Another process begins with what this one has found
    began = time.process_time()
    assert columns.Columns(root(), "p").look().open.num_rows == files * per + 1
    took["first of another"] = round(time.process_time() - began, 2)
    print(f"\n{files * per:,} letters in {files:,} files, CPU seconds: {took}")
    assert max(took.values()) < 1.0, took
