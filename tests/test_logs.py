"""Log records say what they belong to, in every process, and hold no password."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from conduit_tasks import logs
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: out, type: destination, plugin: http, settings: {url: "http://127.0.0.1:1/"},
         delivery: {on-unavailable: dead-letter, timeout: 1s},
         dead-letter-queue: {window-size: 0, plugin: "builtin:log"}}
"""


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What this process logs to stderr, configured as an application's; its loggers are put back after."""
    root, own = logging.getLogger(), logging.getLogger("conduit_tasks")
    before = (list(root.handlers), root.level, own.level)
    logs.configure()
    yield lambda: capsys.readouterr().err
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


def lines(written: Callable[[], str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in written().splitlines()]


@pytest.fixture
def as_json(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONDUIT_LOG", "json")
    return home


def test_every_record_has_what_the_blocks_around_it_say(as_json: Path, written: Callable[[], str]) -> None:
    log = logging.getLogger("conduit_tasks.x")
    with logs.about(pipeline="p", run="r", destination=None):
        with logs.about(destination="d", micro_batch=7):
            log.warning("%d records", 3)
        log.info("less")
    log.info("nothing")
    logging.getLogger("someone.else").info("not told")
    found = lines(written)
    for line in found:
        assert str(line.pop("timestamp")).endswith("+00:00")
    own = {"logger": "conduit_tasks.x"}
    assert found == [
        {
            "level": "warning",
            "event": "3 records",
            "pipeline": "p",
            "run": "r",
            "destination": "d",
            "micro_batch": 7,
            **own,
        },
        {"level": "info", "event": "less", "pipeline": "p", "run": "r", **own},
        {"level": "info", "event": "nothing", **own},
    ]


def test_lines_for_people_say_it_at_the_end(home: Path, written: Callable[[], str]) -> None:
    with logs.about(pipeline="p", micro_batch=7):
        logging.getLogger("conduit_tasks.x").warning("slow")
    assert written().endswith("WARNING conduit_tasks.x: slow [pipeline=p micro_batch=7]\n")


@pytest.mark.parametrize("format", ["json", "text"])
def test_passwords_of_urls_are_masked_in_messages_and_tracebacks(
    format: str, home: Path, written: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_LOG", format)
    log = logging.getLogger("conduit_tasks.x")
    try:
        raise OSError("redis://user:s3cret@host:6379/0 is away")
    except OSError:
        log.exception("no answer from %s", "http://:s3cret@host/")
    said = written()
    assert "s3cret" not in said
    assert said.count("***@host") >= 2


def test_another_thread_logs_about_the_same_where_it_carries_it(as_json: Path, written: Callable[[], str]) -> None:
    with logs.about(pipeline="p"):
        carry = logs.carried()

    def work() -> None:
        carry()
        logging.getLogger("conduit_tasks.x").warning("here")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert lines(written)[0]["pipeline"] == "p"


def test_where_airflow_logs_the_same_names_are_fields_of_its_records(home: Path) -> None:
    with logs.about(pipeline="p", run="r"):
        assert structlog.contextvars.get_contextvars() == {"pipeline": "p", "run": "r"}
    assert structlog.contextvars.get_contextvars() == {}


def test_what_a_delivery_logs_names_pipeline_run_destination_and_micro_batch(
    as_json: Path, written: Callable[[], str]
) -> None:
    events(as_json / "data", 3)
    write_pipeline(as_json, "p", PIPELINE)
    run_once("p", "run-7")
    found = [line for line in lines(written) if str(line["logger"]).startswith("conduit_tasks.dead_letters")]
    assert found
    for line in found:
        assert {name: line[name] for name in ("pipeline", "run", "destination", "micro_batch")} == {
            "pipeline": "p",
            "run": "run-7",
            "destination": "out",
            "micro_batch": 1,
        }


@pytest.mark.slow
def test_executors_log_about_what_their_driver_does(as_json: Path) -> None:
    """In a process of its own: what an executor writes is the driver's stderr."""
    code = (
        "import logging\n"
        "from conduit_tasks import logs\n"
        "from conduit_tasks.spark.plain import context\n"
        "from conduit_tasks.spark.session import run_all\n"
        "def work(n):\n"
        "    logging.getLogger('conduit_tasks.x').info('piece %d', n)\n"
        "    return n\n"
        "with logs.about(pipeline='p', run='r', node='sources.s'):\n"
        "    assert run_all(work, [1, 2]) == [1, 2]\n"
        "context().stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = [record for line in done.stderr.splitlines() if (record := logs.parse(line))]
    assert sorted(str(record["event"]) for record in found) == ["piece 1", "piece 2"]
    assert all((r["pipeline"], r["run"], r["node"]) == ("p", "r", "sources.s") for r in found)


def test_only_our_own_objects_are_taken_for_records() -> None:
    assert logs.parse('{"timestamp":"t","level":"info","logger":"l","event":"e","n":1}') is not None
    for line in ("", "WARN", '{"timestamp":', '{"timestamp":"t","level":"info"}'):
        assert logs.parse(line) is None
