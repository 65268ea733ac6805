"""Views of many dead letters cost what is new, not what is there: files are read once, and records only if shown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.dead_letters import index_entries
from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters import columns
from conduit_tasks.dead_letters.book import read_book
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.resend.counted import counted
from conduit_tasks.resend.select import shares
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


def put(*letters: DeadLetter, destination: str = "web") -> None:
    """Stores letters, in a file of their own, and indexes them."""
    DeadLetterStore(root(), "p", None if destination == BEFORE_FAN_OUT else destination).store(letters)
    broker = broker_of("p")
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
    table = DeadLetterStore.table

    def noted(self: DeadLetterStore, path: str, of: Any) -> Any:
        out.append(path.rpartition("/")[2])
        return table(self, path, of)

    monkeypatch.setattr(DeadLetterStore, "table", noted)
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
    table = DeadLetterStore.table

    def gone(self: DeadLetterStore, path: str, of: Any) -> Any:
        monkeypatch.setattr(DeadLetterStore, "table", table)
        DeadLetterStore(root(), "p").remove("web", {(0, 1, 1, 0)})
        return table(self, path, of)

    monkeypatch.setattr(DeadLetterStore, "table", gone)
    assert columns.Columns(root(), "p").look().open["seq"].to_pylist() == [2]
    next(Path(root()).rglob("*.parquet")).write_bytes(b"torn")
    with pytest.raises(ConduitError, match="is no file of dead letters"):
        columns.Columns(root(), "p").look()


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


@pytest.mark.proves("X2")
def test_what_would_be_sent_is_counted_as_it_is_chosen(pipeline: None) -> None:
    # Given letters of several epochs, of a replay, from before the fan-out, of no destination, settled, and not indexed
    put(*(letter(n, 1) for n in range(20)))
    put(*(letter(n, 1, epoch=3) for n in range(4, 8)))
    put(*(letter(n, 0, epoch=e) for n in range(6) for e in (4, 5)))
    put(letter(30, 2), letter(31, 2), destination="gone")
    sealed = broker_of("p")
    sealed.redis.hset(sealed.keys.pipeline, "sealed", "5")
    put(letter(40, 3, node="processors/x"), letter(41, 3, node="sources.away/x"), destination=BEFORE_FAN_OUT)
    put(letter(42, 9, node="processors/x"), destination=BEFORE_FAN_OUT)
    DeadLetterStore(root(), "p", "web").store([letter(50, 1)])
    look = columns.Columns(root(), "p").look()
    ids = Selection(ids=(letter(5, 1).record.id, letter(3, 0).record.id))
    issues = Selection(issues=tuple(look.letters["issue"].unique().to_pylist()[:1]))
    with opened("p", "look") as context:
        for selection in (*SELECTIONS, ids, issues):
            chosen, why = shares(context, selection)
            expected = [(share.destination, len(share.rows), share.waiting) for share in chosen]
            found, said = counted(context, selection, look.letters)
            assert ([(s.destination, s.letters, s.parked) for s in found], said) == (expected, why), selection
        book = read_book(DeadLetterStore(root(), "p"), Marks(root(), "p"), context.broker)
        assert len(book.entries) == look.letters.num_rows


def test_one_letter_is_found_without_the_files_of_other_micro_batches(pipeline: None, read: list[str]) -> None:
    for batch in range(1, 11):
        put(letter(batch, batch))
        put(letter(100 + batch, batch, epoch=2))
    [row] = [row for row in DeadLetterStore(root(), "p").rows("web", ["id"], 4) if not row["epoch"]]
    assert (row["seq"], len(read)) == (4, 2)


@pytest.mark.parametrize("files", [10, 1_000])
def test_no_look_costs_a_second_of_cpu(
    api: Any, pipeline: None, read: list[str], files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    per = MANY // files
    for batch in range(files):
        put(*(letter(batch * per + n, batch + 1) for n in range(per)))
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
    print(f"\n{files * per:,} letters in {files:,} files, CPU seconds: {took}")
    del took["first"]
    assert max(took.values()) < 1.0, took
