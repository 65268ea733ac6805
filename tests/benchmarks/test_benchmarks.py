"""Every benchmark runs with a thousand events, and its numbers add up; none is asked how fast it was."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import RUN
from benchmarks.data import count_of, write_events
from benchmarks.receiver import receiving, summary
from benchmarks.stream import of_a_day
from benchmarks.tables import Figure, number, table
from tests.benchmarks.conftest import Run

EVENTS = 1_000


def check_three(facts: dict[str, Any]) -> None:
    assert facts["lines.all"] == facts["lines.added"] == EVENTS
    assert 0 < facts["lines.filtered"] < EVENTS
    assert facts["submits"] == 4


def check_two(facts: dict[str, Any]) -> None:
    assert facts["lines.all"] == EVENTS
    assert 0 < facts["lines.filtered"] < EVENTS


def check_submit(facts: dict[str, Any]) -> None:
    assert facts["submits"] == 3 * facts["rounds"]


def check_http(facts: dict[str, Any]) -> None:
    assert facts["delivered"] == facts["distinct"] == EVENTS


def check_tasks(facts: dict[str, Any]) -> None:
    assert facts["events"] == EVENTS
    assert facts["state"] <= 64_000
    assert {facts[f"{kind}.1"] for kind in ("parquet", "lines", "delta", "s3")} == {EVENTS}


def check_backlog(facts: dict[str, Any]) -> None:
    assert facts["events"] == EVENTS
    assert min(facts["one"], facts["several"]) > 0


def check_servers(facts: dict[str, Any]) -> None:
    assert {facts[f"{kind}.1"] for kind in ("postgres", "sql", "kafka", "kafka, once", "redis")} == {EVENTS}
    assert facts["sqs.1"] == 100


def check_many(facts: dict[str, Any]) -> None:
    assert (facts["destinations"], facts["pipelines"]) == (4, 3)
    assert facts["bytes"] > 0


def check_kafka(facts: dict[str, Any]) -> None:
    assert facts["arrived.at-least-once"] == facts["arrived.effectively-once"] == EVENTS


def check_redis(facts: dict[str, Any]) -> None:
    assert 0 < facts["nacked"] < facts["nacked"] + facts["delivered"] == 400


def check_standalone(facts: dict[str, Any]) -> None:
    assert facts["read"] == facts["given"] == EVENTS


def check_largest(facts: dict[str, Any]) -> None:
    assert facts["records"] == 2 * EVENTS
    assert facts["task"] > 0


def check_growth(facts: dict[str, Any]) -> None:
    assert facts["events"] == 200 + EVENTS
    assert facts["state.200"] > 0


def check_gateway(facts: dict[str, Any]) -> None:
    assert facts["stored"] == 200 + 200 + 800


def check_scripts(facts: dict[str, Any]) -> None:
    assert facts["scripts"] > 4


def check_chain(facts: dict[str, Any]) -> None:
    assert facts["rows"] == EVENTS


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in RUN if name not in ("whole", "stream", "topics")]
)  # they want a stack
def test_each_benchmark_runs_and_its_numbers_add_up(name: str, quick: Run) -> None:
    # When a benchmark runs at its smallest size (it counts what each destination holds by itself)
    result = quick(name)
    # Then it made a table, its figures are numbers, and its counts are those of the events
    assert result["name"] == name
    assert result["rows"]
    assert all(math.isfinite(figure["got"]) for figure in result["figures"])
    globals()[f"check_{name}"](result["facts"])


def test_events_have_their_size_and_are_the_same_at_each_writing(tmp_path: Path) -> None:
    first, second = write_events(tmp_path / "a", 500), write_events(tmp_path / "b", 500)
    assert first.read_bytes() == second.read_bytes()
    lines = first.read_bytes().splitlines(keepends=True)
    assert {len(line) for line in lines} == {225}
    assert [json.loads(line)["id"] for line in lines] == list(range(500))
    assert count_of(first, b'"kind":"buy"') == sum(json.loads(line)["kind"] == "buy" for line in lines)


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("rate", 150_000, "≥", 150_000), True),
        (Figure("rate", 149_999, "≥", 150_000), False),
        (Figure("CPU", 12.1, "≤", 12), False),
        (Figure("CPU", 12.0, "≤", 12), True),
        (Figure("ratio", 3.0), None),
    ],
)
def test_a_figure_is_met_exactly_from_its_bound_on(figure: Figure, met: bool | None) -> None:
    assert figure.met is met
    assert ("NOT MET" in figure.row()) is (met is False)


def test_tables_part_thousands_and_align_numbers() -> None:
    assert [number(n) for n in (1234567, 12.345, 0.1234, 3)] == ["1,234,567", "12.3", "0.12", "3"]
    head, rule, *rows = table(("who", "events"), [["ours", 1000], ["theirs", 5]]).splitlines()
    assert rows == ["| ours   |  1,000 |", "| theirs |      5 |"]
    assert len({len(line) for line in (head, rule, *rows)}) == 1


def test_the_receiver_answers_requests_sent_together_and_counts_their_keys() -> None:
    import socket
    from urllib.parse import urlsplit

    def request(key: str, body: bytes) -> bytes:
        return f"POST / HTTP/1.1\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    with receiving() as (url, _):
        # Given three requests, two with one key, whose bytes arrive together and torn
        sent = request("a", b"{}") + request("b", b"") + request("a", b"\r\n\r\n")
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
            connection.sendall(sent[:50])
            connection.sendall(sent[50:])
            answers = b""
            while answers.count(b"204") < 3:
                answers += connection.recv(1024)
        # Then each is answered and two keys were seen
        assert summary(url) == {"requests": 3, "distinct": 2}


def test_logs_of_an_idle_day_are_those_of_runs_that_were_handed_over_and_of_runs_that_left_their_work(
    tmp_path: Path,
) -> None:
    def logged(run: str, **tasks: int) -> None:
        for task, size in tasks.items():
            (tmp_path / run / task).mkdir(parents=True)
            (tmp_path / run / task / "attempt=1.log").write_bytes(b"." * size)

    logged("busy", plan=1_000, sources=90_000)
    logged("idle", plan=1_000, sources=9_000)
    assert of_a_day(tmp_path) == 0.0
    logged("left", plan=2_000)
    # A run begins every 580 s, and every fourth is handed over, after 2,320 s
    assert of_a_day(tmp_path) == pytest.approx(86_400 / 2_320 * (10_000 + 3 * 2_000))
