"""SEMANTICS X8: what a file guarantees, per edge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conduit_tasks.pipeline.explain import explain, explain_text, mermaid
from conduit_tasks.pipeline.guarantees import PIPES
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.pipeline.model import PIPES as PIPE_NAMES
from tests.pipeline.conftest import FILES, Files


def edge(about: dict[str, Any], target: str) -> dict[str, Any]:
    return next(e for e in about["edges"] if e["target"] == target)


@pytest.mark.proves("X8", "C10")
def test_each_edge_says_its_order_guarantee_and_where_duplicates_arise() -> None:
    about = explain(load_file(FILES / "design.yaml", env={}).pipelines[0])

    delays, archive = edge(about, "destinations.delays"), edge(about, "destinations.archive")
    assert delays["order"].startswith("per key")
    assert "at most 64 unconfirmed records" in delays["duplicates"]
    assert "O2" in delays["rules"]
    assert archive["order"].startswith("per source partition")
    assert archive["duplicates"].startswith("none")
    assert "spool" in archive["not_tolerated"][0]
    assert "C12" in about["edges"][0]["rules"]
    assert json.dumps(about)


@pytest.mark.proves("B2")
def test_a_lag_budget_above_one_micro_batch_is_said_to_give_up_one_in_flight(files: Files) -> None:
    def notes(keys: str) -> str:
        return " ".join(explain(files.load(files.with_pipeline(keys)).pipelines[0], connectors=False)["notes"])

    assert "B2" in notes("lag-budget: {records: 1000000}")
    assert "B2" in notes("lag-budget: {age: 6h}")
    assert "B2" not in notes("lag-budget: {records: 500000}")
    assert "B2" not in notes("")


@pytest.mark.proves("C10")
def test_tasks_beside_each_other_are_told_with_what_they_do_to_order_window_and_repeats(files: Files) -> None:
    keys = "delivery: {parallelism: 4, order-by: key, max-unconfirmed: 8}"
    queue = "dead-letter-queue: {window-size: 100, window-nack-threshold: 5}"
    text = files.with_pipeline(destination=f"{keys}\n{queue}")
    http = text.replace(
        "plugin: file\n        settings: {path: out.txt}", "plugin: http\n        settings: {url: 'http://h/'}"
    )
    about = explain(files.load(http).pipelines[0])
    edge = about["edges"][-1]
    assert edge["order"].endswith("by up to 4 tasks beside each other, a lane by one of them")
    assert "at most 8 unconfirmed records, and up to 2,000" in edge["duplicates"]
    assert edge["duplicates"].endswith("of each of up to 4 tasks")
    [window] = [said for node, said in about["windows"].items() if node.startswith("destinations.")]
    assert "more than 5 among the last 100 of one of up to 4 tasks stop" in window
    # One that has one task says why, and nothing else of it.
    about = explain(files.load(text).pipelines[0])
    assert "by one task, though parallelism is 4: the connector writes in one place" in about["edges"][-1]["order"]
    assert "tasks" not in about["windows"][about["edges"][-1]["target"]]


def test_tasks_that_are_left_to_spark_are_told_with_their_limit(files: Files) -> None:
    text = files.with_pipeline(destination="delivery: {parallelism: auto, order-by: key}")
    parquet = text.replace("settings: {path: out.txt}", "settings: {path: out, format: parquet}")
    order = explain(files.load(parquet).pipelines[0])["edges"][-1]["order"]
    assert "by up to 16 tasks beside each other, a lane by one of them: as many as Spark's default parallelism" in order
    order = explain(files.load(text).pipelines[0])["edges"][-1]["order"]
    assert "by one task, though parallelism is auto: the connector writes in one place" in order


def test_several_micro_batches_at_once_are_told_where_the_order_lets_them_be(files: Files) -> None:
    def order(keys: str, http: bool = True) -> str:
        text = files.with_pipeline(destination=f"delivery: {{{keys}}}")
        if http:
            text = text.replace(
                "plugin: file\n        settings: {path: out.txt}", "plugin: http\n        settings: {url: 'http://h/'}"
            )
        else:
            text = text.replace("settings: {path: out.txt}", "settings: {path: out, format: parquet}")
        return str(explain(files.load(text).pipelines[0])["edges"][-1]["order"])

    said = "up to 16 micro-batches at once, if the lag budget lets so many be read"
    assert order("parallelism: 4, order-by: none").endswith(said)
    assert order("parallelism: auto, order-by: none").endswith(said)
    for keys in ("parallelism: 4, order-by: key", "parallelism: 4", "order-by: none"):
        assert said not in order(keys)
    # Files are kept apart by the names of shards.
    assert said not in order("parallelism: 4, order-by: none", http=False)


def test_dropping_is_said_to_lower_the_guarantee(files: Files) -> None:
    text = files.with_pipeline("dead-letter-queue: {plugin: builtin:log, window-size: 0}")
    about = explain(files.load(text).pipelines[0], connectors=False)
    assert "at-most-once for failed records" in edge(about, "destinations.out")["guarantee"]
    assert "dropped" in about["windows"]["destinations.out"]


@pytest.mark.proves("C5", "C6")
def test_the_nack_window_is_put_into_words(files: Files) -> None:
    def window(queue: str) -> str:
        pipeline = files.load(files.with_pipeline(queue)).pipelines[0]
        return str(explain(pipeline, connectors=False)["windows"]["before the fan-out"])

    assert window("") == "the first failed record stops the pipeline"
    assert "more than 5 among the last 100 stop" in window(
        "dead-letter-queue: {window-size: 100, window-nack-threshold: 5}"
    )
    assert "without a limit" in window("dead-letter-queue: {window-size: 0}")


def test_text_shows_every_node_and_no_setting() -> None:
    text = explain_text(load_file(FILES / "design.yaml", env={}).pipelines[0], connectors=False)
    for part in ("sources.departures", "processors", "destinations.delays", "Limits", "500,000 records, 256MiB"):
        assert part in text
    assert "localhost:9000" not in text


@pytest.mark.proves("X8", "O1", "O2", "O3", "O4", "O5", "O5r", "O6", "O6r")
@pytest.mark.parametrize("pipe", PIPE_NAMES)
def test_every_pipe_is_explained_with_what_it_does_not_tolerate(files: Files, pipe: str) -> None:
    about = explain(files.load(files.with_pipeline(destination=f"delivery: {{pipe: {pipe}}}")).pipelines[0])
    said = edge(about, "destinations.out")
    assert PIPES[pipe].number in said["rules"]
    assert PIPES[pipe].delivery in said["acked"]
    assert PIPES[pipe].not_tolerated == said["not_tolerated"][0]
    assert set(PIPES) == set(PIPE_NAMES)


SQL = "plugin: sql\n        settings: {{url: 'sqlite:///o.db', table: t, mode: {mode}}}"
HTTP = "plugin: http\n        settings: {url: 'http://localhost/'}"


@pytest.mark.proves("X8", "B8", "C10")
@pytest.mark.parametrize(
    ("plugin", "delivery", "duplicates", "not_tolerated"),
    [
        (SQL.format(mode="upsert"), "retry: 0", "replace themselves, by record id", ""),
        (SQL.format(mode="upsert"), "guarantee: effectively-once", "a repetition is dropped", ""),
        (SQL.format(mode="append"), "retry: 0", "the rows of that write", ""),
        (SQL.format(mode="append"), "guarantee: effectively-once", "a repetition is dropped", "the rows come twice"),
        (SQL.format(mode="append"), "guarantee: at-most-once", "a repetition is dropped", ""),
        (SQL.format(mode="append"), "pipe: monotonic", "a repetition is dropped", ""),
        ("", "guarantee: effectively-once", "goes back to exactly what was confirmed", ""),
        (HTTP, "retry: 0", "up to 2,000 whose answers", ""),
        (HTTP, "pipe: continuous", "up to 2,000 whose answers", "the sender's or the receiver's state"),
        (HTTP, "guarantee: at-most-once", "is not sent again", "up to 500 records behind it are given up"),
    ],
)
def test_duplicates_and_losses_are_told_for_each_guarantee(
    files: Files, plugin: str, delivery: str, duplicates: str, not_tolerated: str
) -> None:
    text = files.with_pipeline(destination=f"delivery: {{{delivery}}}")
    if plugin:
        text = text.replace("plugin: file\n        settings: {path: out.txt}", plugin)
    said = edge(explain(files.load(text).pipelines[0]), "destinations.out")
    assert duplicates in said["duplicates"]
    assert not_tolerated in " ".join(said["not_tolerated"])


def test_the_numbers_that_are_told_are_those_of_the_engine() -> None:
    from conduit_tasks.delivery import at_most_once, record_wise
    from conduit_tasks.delivery.lanes import KEY_LANES
    from conduit_tasks.pipeline import guarantees, validate_delivery

    assert guarantees.BEGUN_AHEAD == at_most_once.AHEAD
    assert validate_delivery.KEY_LANES == KEY_LANES
    assert validate_delivery.ONE_UNCONFIRMED == record_wise.ONE_UNCONFIRMED


def test_the_picture_has_the_pipelines_shape() -> None:
    picture = mermaid(load_file(FILES / "design.yaml", env={}).pipelines[0])
    assert picture.splitlines()[0] == "flowchart LR"
    assert "s0 --> p" in picture
    assert 'p -->|"filtered"| d0' in picture
    assert "p --> d1" in picture


def test_a_pipeline_without_processors_still_fans_in_and_out(files: Files) -> None:
    assert "p(( ))" in mermaid(files.load(files.with_pipeline()).pipelines[0])


@pytest.mark.proves("X8", "C10")
@pytest.mark.parametrize(
    ("plugin", "settings", "duplicates"),
    [("sqs", "queue: q", "messages that the queue hands out again"), ("file", "path: in.txt", "none: a slice")],
)
def test_duplicates_of_a_queue_are_told(files: Files, plugin: str, settings: str, duplicates: str) -> None:
    text = f"""
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: {plugin}, settings: {{{settings}}}}}
      - {{id: out, type: destination, plugin: log}}
"""
    pipeline = files.load(text).pipelines[0]
    assert edge(explain(pipeline), "pipeline")["duplicates"].startswith(duplicates)
    assert "unless the source is a queue" in edge(explain(pipeline, connectors=False), "pipeline")["duplicates"]
