"""Standalone connectors in pipelines: at least once, in order, acked in order, opened where they were acked."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.micro_batch import read
from conduit_tasks.operate.control import stop
from conduit_tasks.operate.teardown import teardown
from tests.micro_batch.harness import state, write_pipeline
from tests.micro_batch.side_by_side import patient, play  # noqa: F401 - a fixture

COUNTER = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {{max-records: 40}}
    {more}
    connectors:
      - id: in
        type: source
        plugin: standalone:counter
        settings: {{count: "{count}", batch: "7", notes: {notes}, conduit.idle: 200ms{settings}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/all.jsonl, format: payload}}}}
"""


def counting(home: Path, count: int, *, more: str = "", settings: str = "") -> Path:
    notes = home / "notes"
    write_pipeline(home, "p", COUNTER.format(count=count, notes=notes, more=more, settings=settings))
    return notes


def numbers(home: Path) -> list[int]:
    path = home / "out/all.jsonl"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def noted(notes: Path, what: str) -> list[str]:
    return [line[len(what) + 1 :] for line in notes.read_text().splitlines() if line.split(" ")[0] == what]


@pytest.mark.proves("C9", "C11")
def test_a_source_is_read_whole_in_order_and_acked_in_order(home: Path, programs: Path) -> None:
    notes = counting(home, 200)
    play("p")
    assert numbers(home) == list(range(1, 201))
    assert noted(notes, "ack") == [str(n) for n in range(1, 201)]
    assert noted(notes, "open") == [""]
    assert noted(notes, "stop") == ["200"]
    assert notes.read_text().splitlines()[-1] == "teardown"


def test_a_later_run_opens_at_the_acked_position_and_reads_what_is_new(home: Path, programs: Path) -> None:
    counting(home, 50)
    play("p", "first")
    notes = counting(home, 90)
    play("p", "second")
    assert numbers(home) == list(range(1, 91))
    assert noted(notes, "open") == ["", "50"]
    assert noted(notes, "ack") == [str(n) for n in range(1, 91)]
    assert noted(notes, "created") == [""]
    assert noted(notes, "updated") == ["50 90"]


def test_a_run_in_which_nothing_is_new_makes_no_micro_batch(home: Path, programs: Path) -> None:
    counting(home, 10, settings=", conduit.first: 300ms")
    play("p", "first")
    play("p", "second")
    broker = state("p")
    assert broker.micro_batches.latest_sealed() == 1
    broker.close()


@pytest.mark.proves("C10", "C12")
def test_what_is_read_and_not_acked_comes_again_and_is_not_read_twice(home: Path, programs: Path) -> None:
    # Given a destination that is not there, so that nothing is acked
    notes = counting(home, 30)
    text = (home / "include/pipelines/p.yaml").read_text()
    away = text.replace("{path: out/all.jsonl, format: payload}", "{path: nowhere/at/all.jsonl, format: payload}")
    (home / "nowhere").write_text("no folder")
    write_pipeline(home, "p", away)
    play("p", "first", retries=0)
    assert noted(notes, "ack") == []
    # When it is there, and more is new
    write_pipeline(home, "p", text.replace('count: "30"', 'count: "75"'))
    # (and nothing is acked before the source was opened, however quick the destination is)
    play("p", "second", acks_after=lambda: len(noted(notes, "open")) == 2)
    # Then the connector was opened where it was acked, everything came once, and is acked to the process that sent it
    assert noted(notes, "open") == ["", ""]
    assert numbers(home) == list(range(1, 76))
    assert noted(notes, "ack") == [str(n) for n in range(1, 76)]


DESTINATION = """
version: "2.2"
pipelines:
  - id: p
    {more}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: data/a.txt, settle: 0s}}}}
      - id: out
        type: destination
        plugin: standalone:counter@v0.2.0
        settings: {{path: {path}, notes: {notes}{settings}}}
        delivery: {{backoff-delay: 10ms, {delivery}}}
"""


def delivering(home: Path, count: int, *, more: str = "", settings: str = "", delivery: str = "retry: 0") -> Path:
    (home / "data").mkdir(exist_ok=True)
    (home / "data/a.txt").write_text("".join(f"{n} line\n" for n in range(1, count + 1)))
    text = DESTINATION.format(
        path=home / "out.txt", notes=home / "notes", more=more, settings=settings, delivery=delivery
    )
    write_pipeline(home, "p", text)
    return home / "notes"


def lines(home: Path) -> list[int]:
    return [int(line.split()[0]) for line in (home / "out.txt").read_text().splitlines()]


@pytest.mark.proves("C9", "C17")
def test_a_destination_gets_everything_once_and_in_order_in_batches(home: Path, programs: Path) -> None:
    notes = delivering(home, 2_500)
    play("p")
    assert lines(home) == list(range(1, 2_501))
    assert noted(notes, "batch") == ["1000", "1000", "500"]
    assert noted(notes, "created") == [""]
    # When more comes, the connector is opened again and is not new
    delivering(home, 2_600)
    play("p", "second")
    assert lines(home) == list(range(1, 2_601))
    assert noted(notes, "created") == [""]
    assert noted(notes, "open") == ["", ""]


@pytest.mark.proves("C5", "C14")
def test_a_record_that_is_refused_becomes_a_dead_letter_alone(home: Path, programs: Path) -> None:
    queue = "dead-letter-queue: {window-size: 0}"
    delivering(home, 300, more=queue, settings=', refuse: "7 line"')
    play("p")
    refused = [n for n in range(1, 301) if n % 10 == 7]
    assert lines(home) == [n for n in range(1, 301) if n not in refused]
    broker = state("p")
    assert broker.dead_letters.count("out") == len(refused)
    assert broker.deliveries.get("out").counters["delivered"] == 300 - len(refused)
    broker.close()


@pytest.mark.proves("T6")
def test_a_record_that_fails_is_sent_again_as_often_as_the_file_says(home: Path, programs: Path) -> None:
    notes = delivering(home, 50, settings=', fail: "5 line", times: "2"', delivery="retry: 2")
    play("p")
    assert lines(home) == list(range(1, 51))
    broker = state("p")
    assert broker.dead_letters.count("out") == 0
    broker.close()
    assert len(noted(notes, "open")) < 20


def test_a_destination_that_collects_batches_is_asked_to_write_what_it_has(home: Path, programs: Path) -> None:
    # The connector answers at once here; what matters is that nothing waits for a batch to fill
    delivering(home, 30, settings=', sdk.batch.size: "20"')
    play("p")
    assert lines(home) == list(range(1, 31))


@pytest.mark.proves("C10", "C12")
def test_a_holder_that_is_killed_leaves_no_gap(home: Path, programs: Path) -> None:
    # Given a run whose reading is cut off in the middle, again and again
    notes = counting(home, 300)
    reads = 0

    def cut_off() -> None:
        nonlocal reads
        reads += 1
        if reads % 3 == 2:
            raise SpoolError("cut off")

    original = read.stage

    def stage(*args: object, **options: object) -> None:
        cut_off()
        original(*args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read, "stage", stage)
        deadline = time.monotonic() + 240
        for n in count():
            played = play("p", f"run-{n}", retries=0)
            if len(numbers(home)) == 300:
                break
            assert time.monotonic() < deadline, f"not all came: {played}"
            if played.idle:
                # It failed a moment ago, and is left alone until its delay is over.
                time.sleep(0.1)
    # Then everything is there once, in order, and the connector was opened where it was acked
    assert numbers(home) == list(range(1, 301))
    opened = noted(notes, "open")
    assert len(opened) > 2
    acks = [int(n) for n in noted(notes, "ack")]
    assert acks == sorted(set(acks))
    at = 0
    for line in notes.read_text().splitlines():
        what, _, rest = line.partition(" ")
        if what == "ack":
            at = int(rest)
        elif what == "open":
            # Acks that a killed holder did not give any more may be durable already
            assert int(rest or 0) >= at


@pytest.mark.proves("C9")
def test_two_sources_take_turns(home: Path, programs: Path) -> None:
    counting(home, 120)
    text = (home / "include/pipelines/p.yaml").read_text()
    (home / "data").mkdir()
    (home / "data/a.txt").write_text("".join(f"{n} x\n" for n in range(1_001, 1_201)))
    more = "      - {id: lines, type: source, plugin: file, settings: {path: data/a.txt, settle: 0s}}\n"
    write_pipeline(home, "p", text.replace("      - {id: out", f"{more}      - {{id: out"))
    play("p")
    found = numbers(home)
    assert [n for n in found if n < 1_000] == list(range(1, 121))
    assert [n for n in found if n > 1_000] == list(range(1_001, 1_201))


def test_avro_that_a_source_encoded_by_its_schemas_is_shown_as_structure(home: Path, programs: Path) -> None:
    write_pipeline(
        home,
        "p",
        """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: "standalone:books", settings: {conduit.idle: 1s}}
      - {id: out, type: destination, plugin: file, settings: {path: out/all.jsonl, format: opencdc}}
""",
    )
    play("p")
    found = [json.loads(line) for line in (home / "out/all.jsonl").read_text().splitlines()]
    assert [r["payload"]["after"] for r in found] == [
        {"title": "Ulysses", "pages": 0},
        {"title": "Emma", "pages": 100},
        {"title": "Dracula", "pages": 200},
    ]
    assert [r["key"] for r in found] == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert {r["operation"] for r in found} == {"snapshot"}


def test_a_teardown_tells_the_connector_that_it_is_deleted(home: Path, programs: Path) -> None:
    notes = counting(home, 5)
    play("p")
    stop("p")
    assert teardown("p", "in") == ["what standalone:counter made for itself (LifecycleOnDeleted)"]
    assert noted(notes, "deleted") == [""]
