"""Findings about `delivery`: options that contradict each other, and names of pipes and guarantees that are untrue."""

from __future__ import annotations

import pytest

from conduit_tasks import connections
from conduit_tasks.connections import Connection
from conduit_tasks.pipeline.explain import explain_text
from conduit_tasks.pipes import PIPES
from conduit_tasks.topology import Breaker, Delivery
from tests.pipeline.conftest import Files
from tests.pipeline.test_validate import DESTINATION_LINE, Only


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ("delivery: {pipe: sequential, order-by: none}", "E209", "sequential promises an order"),
        ("delivery: {pipe: continuous-relaxed, order-by: none}", "E209", "promises an order"),
        ("delivery: {pipe: resend, order-by: none, max-unconfirmed: 9}", "E209", "one unconfirmed record, not 9"),
        ("delivery: {guarantee: at-most-once, retry: 2}", "E209", "at-most-once never sends twice"),
        ("delivery: {park-keys: true}", "E209", "order-by: key"),
        ("delivery: {pipe: resend, max-unconfirmed: 2}", "E209", "write pipe: resend-multi"),
        ("delivery: {pipe: sequential, order-by: key, max-unconfirmed: 8}", "E209", "one unconfirmed record, not 8"),
        ("delivery: {guarantee: at-most-once, on-unavailable: wait}", "E209", "cannot wait for a destination"),
        ("processors: [{id: a, plugin: split}]\ndelivery: {pipe: monotonic}", "E209", "makes several of one"),
        ("delivery: {order-by: key, max-unconfirmed: 65}", "W202", "64 lanes"),
        ("delivery: {guarantee: at-most-once, breaker: {}}", "E209", "remove breaker"),
        ("delivery: {breaker: {pause: 1m, pause-max: 30s}}", "E103", "pause-max is below pause"),
        ("delivery: {breaker: {failures: 0}}", "E103", "write more than 0"),
        ("delivery: {breaker: {pause: 0s}}", "E103", "write more than 0"),
        ("delivery: {breaker: {faliures: 2}}", "E101", "did you mean 'failures'"),
        ("delivery: {breaker: 5}", "E103", "write a map"),
        (
            "delivery: {on-unavailable: dead-letter, retry: 2, breaker: {failures: 4}}",
            "W202",
            "write 3 or less, or a larger retry",
        ),
        ("delivery: {backoff-delay: 1s}", "W202", "add retry"),
        ("delivery: {rate-limit: 0/s}", "E103", "is not a rate"),
        ("delivery: {backoff-delay: -1s}", "E103", "is not a duration"),
        ("delivery: {guarantee: exactly-once}", "E103", "'effectively-once'"),
        (
            "delivery: {park-keys: true, order-by: key}\ndead-letter-queue: {plugin: log, window-size: 1}",
            "E209",
            "plugin: log keeps none",
        ),
        ("delivery: {pipe: resend-multi, order-by: key, max-unconfirmed: 65}", "W202", "64 lanes"),
        ("delivery: {retry: -1}", "E103", "write 0 or more"),
        ("delivery: {timeout: 10}", "E103", "is not a duration"),
        ("delivery: {timeout: 0s}", "E103", "above zero"),
        ("delivery: {pipe: hose}", "E103", "'resend'"),
        ("delivery: {max-unconfirmed: 8}", "W202", "order-by: key for 64 lanes"),
        ("delivery: {retries: 3}", "E101", "did you mean 'retry'?"),
        ("ack-on: stored", "E107", "belongs to a source"),
        ("delivery: {parallelism: 2, pipe: resend}", "E209", "has one record on its way in all"),
        ("delivery: {parallelism: 2, pipe: sequential, retry: 5}", "E209", "write pipe: stream or resend-multi"),
        ("delivery: {parallelism: 2, pipe: continuous}", "E209", "its numbers have one sender"),
        ("delivery: {parallelism: 2, guarantee: at-most-once}", "E209", "one mark of how far sending has come"),
        ("delivery: {parallelism: 2, order-by: key, park-keys: true}", "E209", "remove parallelism or park-keys"),
        ("delivery: {parallelism: 2, breaker: {}}", "E209", "remove parallelism or breaker"),
        (
            "delivery: {parallelism: 2, order-by: key}\n"
            "processors: [{id: a, plugin: field.set, settings: {field: .Key, value: x}}]",
            "E209",
            "may change the key",
        ),
        ("delivery: {parallelism: 0}", "E103", "more than 0"),
        ("delivery: {parallelism: 65}", "E103", "64"),
        ("delivery: {parallelism: many}", "E103", "or auto; not 'many'"),
        ("delivery: {parallelism: true}", "E103", "or auto"),
        ("delivery: {parallelism: auto, pipe: resend}", "W202", "has one record on its way in all"),
    ],
)
def test_contradictory_delivery_options_are_found(only: Only, files: Files, keys: str, code: str, says: str) -> None:
    line, _, found, message, hint = only(files.with_pipeline(destination=keys))
    assert (found, line) == (code, DESTINATION_LINE)
    assert says in f"{message} {hint}"


UNTRUE = {
    "retry: 0": ("retry", {"resend", "resend-multi", "sequential", "continuous", "continuous-relaxed"}),
    "guarantee: at-most-once": (
        "guarantee",
        {"resend", "resend-multi", "sequential", "continuous", "continuous-relaxed"},
    ),
    "guarantee: at-most-once, retry: 0": (
        "guarantee",
        {"resend", "resend-multi", "sequential", "continuous", "continuous-relaxed"},
    ),
    "guarantee: at-most-once, on-unavailable: dead-letter": (
        "guarantee",
        {"resend", "resend-multi", "sequential", "continuous", "continuous-relaxed"},
    ),
    "on-unavailable: dead-letter": ("on-unavailable", {"sequential", "continuous", "continuous-relaxed"}),
    "max-unconfirmed: 1": ("max-unconfirmed", {"resend-multi"}),
    "order-by: partition": ("order-by", {"resend-multi"}),
    "order-by: partition, max-unconfirmed: 1": ("max-unconfirmed", {"resend-multi"}),
    "order-by: key": ("", set()),
    "retry: 3": ("", set()),
    "on-unavailable: wait": ("", set()),
    "guarantee: effectively-once": ("", set()),
    "refused: complete": ("", set()),
    "rate-limit: 5/s": ("", set()),
}
"""Options → which of them makes a pipe's name untrue, and whose."""


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("options", UNTRUE)
def test_what_makes_the_name_of_a_pipe_untrue_is_warned_of_at_its_place(files: Files, options: str, pipe: str) -> None:
    # Given each pipe with each option
    key, pipes = UNTRUE[options]
    text = f"delivery: {{pipe: {pipe}, {options}}}"
    # When it is looked at
    found = [f for f in files.load(files.with_pipeline(destination=text)).findings if f.code != "W202"]
    # Then there is one warning, at the option, for the pipes whose name is untrue, and none for the others
    line = f"        {text}"
    assert [(f.code, f.line, line[f.column - 1 :].split(":", maxsplit=1)[0]) for f in found] == (
        [("W205", DESTINATION_LINE, key)] if pipe in pipes else []
    )
    assert all(f"the pipe {pipe} " in f.message and f.hint for f in found)


@pytest.mark.parametrize("pipe", PIPES)
def test_a_pipe_without_more_is_what_its_name_says(files: Files, pipe: str) -> None:
    assert files.load(files.with_pipeline(destination=f"delivery: {{pipe: {pipe}}}")).findings == []


@pytest.mark.proves("O1", "O2")
def test_a_pipe_that_re_sends_does_so_by_default_and_has_several_unconfirmed_where_its_name_says_so(
    files: Files,
) -> None:
    def delivery(keys: str) -> Delivery:
        found = files.load(files.with_pipeline(destination=f"delivery: {{{keys}}}"))
        assert found.findings == []
        return found.pipelines[0].destinations[0].delivery

    assert delivery("pipe: resend") == Delivery(pipe="resend", retry=5, max_unconfirmed=1)
    assert delivery("pipe: resend-multi") == Delivery("resend-multi", retry=5, max_unconfirmed=64, order_by="none")
    assert delivery("pipe: resend-multi, order-by: key, max-unconfirmed: 8, retry: 2, backoff-delay: 1s") == Delivery(
        "resend-multi", retry=2, max_unconfirmed=8, order_by="key", backoff_delay=1.0
    )
    assert delivery("pipe: sequential") == Delivery("sequential")


@pytest.mark.parametrize("pipe", ["resend", "sequential"])
def test_a_pipe_of_one_record_at_a_time_is_untrue_where_many_are_written(only: Only, files: Files, pipe: str) -> None:
    _, _, code, message, hint = only(files.with_pipeline(destination=f"delivery: {{pipe: {pipe}}}"), plugins=True)
    assert code == "W205"
    assert "writes many at a time" in message
    assert hint == "write pipe: stream"


def test_a_back_off_longer_than_the_timeout_is_fine(files: Files) -> None:
    text = files.with_pipeline(destination="delivery: {backoff-delay: 1h, timeout: 1s, retry: 1}")
    assert files.load(text).findings == []


@pytest.mark.proves("B8")
def test_effectively_once_is_refused_where_it_cannot_be_given(only: Only, files: Files) -> None:
    text = files.with_pipeline(destination="delivery: {guarantee: effectively-once}").replace(
        "plugin: file\n        settings: {path: out.txt}", "plugin: log"
    )
    line, _, code, _message, hint = only(text, plugins=True)
    assert (line, code) == (12, "E211")
    assert "by their id" in hint


@pytest.mark.proves("B8")
@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "effectively-once"])
@pytest.mark.parametrize("plugin", ["file", "http", "sql"])
def test_each_guarantee_is_taken_by_the_destinations_that_can_give_it(
    files: Files, plugin: str, guarantee: str
) -> None:
    settings = {"file": "{path: o}", "http": "{url: 'http://localhost/'}", "sql": "{url: 'sqlite:///o.db', table: t}"}
    text = files.with_pipeline(destination=f"delivery: {{guarantee: {guarantee}}}").replace(
        "plugin: file\n        settings: {path: out.txt}", f"plugin: {plugin}\n        settings: {settings[plugin]}"
    )
    refused = [f.code for f in files.load(text, plugins=True).findings]
    said = {("http", "effectively-once"): ["E211"], ("http", "at-most-once"): ["W204"]}
    assert refused == said.get((plugin, guarantee), [])


@pytest.mark.parametrize(
    ("plugin", "settings", "says"),
    [
        ("file", "{path: o}", "with `files: many` several tasks write files of their own"),
        ("file", "{path: o, files: many}", ""),
        ("file", "{path: o, format: parquet}", ""),
        ("s3", "{bucket: b}", ""),
        ("delta", "{path: t}", ""),
        ("iceberg", "{table: a.t, catalog: {uri: 'http://h'}}", ""),
        ("iceberg", "{table: a.t, catalog: {uri: 'http://h'}, mode: upsert, key: n}", "an upsert writes files again"),
        ("log", "{}", "writes in one place"),
        ("sql", "{url: 'sqlite:///o.db', table: t}", "SQLite has one writer"),
        ("sql", "{url: 'postgresql://h/d', table: t}", ""),
        ("postgres", "{url: 'postgresql://h/d', table: t}", ""),
        ("kafka", "{servers: 'h:9092', topic: t}", ""),
        ("redis", "{url: 'redis://h', stream: s}", ""),
        ("http", "{url: 'http://localhost/'}", ""),
        ("sqs", "{queue: q}", ""),
    ],
)
def test_several_tasks_are_taken_by_destinations_that_can_have_them(
    files: Files, plugin: str, settings: str, says: str
) -> None:
    text = files.with_pipeline(destination="delivery: {parallelism: 4}").replace(
        "plugin: file\n        settings: {path: out.txt}", f"plugin: {plugin}\n        settings: {settings}"
    )
    found = files.load(text, plugins=True).findings
    assert [f.code for f in found] == (["E211"] if says else [])
    assert says in (found[0].message if found else "")


@pytest.mark.parametrize(("kind", "codes"), [("sqlite", ["W202"]), ("postgres", [])])
def test_what_an_airflow_connection_gives_says_if_there_is_one_task_where_it_can_be_asked_for(
    files: Files, monkeypatch: pytest.MonkeyPatch, kind: str, codes: list[str]
) -> None:
    monkeypatch.setattr(connections, "_given", {"db": Connection("db", kind, "o.db")})
    text = files.with_pipeline(destination="delivery: {parallelism: 4}").replace(
        "plugin: file\n        settings: {path: out.txt}", "plugin: sql\n        settings: {connection: db, table: t}"
    )
    found = files.load(text, plugins=True).findings
    assert [f.code for f in found] == codes
    assert all("SQLite has one writer" in f.message for f in found)


@pytest.mark.proves("B8")
@pytest.mark.parametrize(
    ("plugin", "settings", "taken"),
    [
        ("kafka", "{servers: 'h:9092', topic: t}", True),
        ("delta", "{path: t}", False),
        ("iceberg", "{table: a.t, catalog: {uri: 'http://h'}}", False),
        ("file", "{path: o, format: parquet}", False),
        ("s3", "{bucket: b}", False),
        ("postgres", "{url: 'postgresql://h/d', table: t}", False),
        ("redis", "{url: 'redis://h', stream: s}", False),
    ],
)
def test_several_tasks_give_effectively_once_where_each_has_a_mark_of_its_own(
    files: Files, plugin: str, settings: str, taken: bool
) -> None:
    def found(keys: str) -> list[tuple[str, str]]:
        text = files.with_pipeline(destination=f"delivery: {{guarantee: effectively-once, {keys}}}").replace(
            "plugin: file\n        settings: {path: out.txt}", f"plugin: {plugin}\n        settings: {settings}"
        )
        return [(f.code, f.message) for f in files.load(text, plugins=True).findings]

    said = f"one task delivers to '{plugin}': guarantee: effectively-once keeps one mark of how far sending has come"
    assert found("parallelism: 4") == ([] if taken else [("E211", said)])
    assert found("parallelism: auto") == ([] if taken else [("W202", said)])
    # Processors may change the key, whoever writes; this is said once.
    processors = "}\nprocessors: [{id: a, plugin: field.set, settings: {field: .Key, value: x}}]\nack-on: {"
    text = found("parallelism: 4, order-by: key" + processors) if taken else []
    assert [code for code, _ in text if code in ("E209", "E211")] == (["E209"] if taken else [])


def test_as_many_tasks_as_there_can_be_are_one_without_an_error_where_there_can_be_one(files: Files) -> None:
    text = files.with_pipeline(destination="delivery: {parallelism: auto}")
    [found] = files.load(text, plugins=True).findings
    assert found.code == "W202"
    assert "writes in one place" in found.message
    parquet = text.replace("settings: {path: out.txt}", "settings: {path: out, format: parquet}")
    assert files.load(parquet, plugins=True).findings == []


@pytest.mark.proves("B8", "T7")
def test_at_most_once_does_not_wait_for_a_destination_that_is_down(files: Files) -> None:
    result = files.load(files.with_pipeline(destination="delivery: {guarantee: at-most-once}"))
    assert result.pipelines[0].destinations[0].delivery.on_unavailable == "dead-letter"


@pytest.mark.proves("O5", "O6")
@pytest.mark.parametrize(
    ("plugin", "settings", "codes"),
    [
        ("file", "{path: o}", ["W202"]),
        ("http", "{url: 'http://localhost/'}", []),
        ("sql", "{url: 'sqlite:///o.db', table: t}", []),
    ],
)
def test_a_destination_that_has_no_use_for_an_index_is_named(
    files: Files, plugin: str, settings: str, codes: list[str]
) -> None:
    text = files.with_pipeline(destination="delivery: {pipe: continuous}").replace(
        "plugin: file\n        settings: {path: out.txt}", f"plugin: {plugin}\n        settings: {settings}"
    )
    assert [f.code for f in files.load(text, plugins=True).findings] == codes


@pytest.mark.proves("T5")
@pytest.mark.parametrize(
    ("reports", "timeout", "fits"),
    [("45s", "40s", False), ("45s", "1m", True), ("20s", "5s", True), ("45s", "5s", False)],
)
def test_kafkas_reports_come_before_the_write_that_waits_for_them_is_given_up(
    files: Files, reports: str, timeout: str, fits: bool
) -> None:
    text = files.with_pipeline(destination=f"delivery: {{timeout: {timeout}}}")
    at = text.rindex("plugin: file")
    text = text[:at] + text[at:].replace("plugin: file", "plugin: kafka", 1)
    at = text.rindex("settings: {")
    end = text.index("}", at)
    kafka = f'settings: {{servers: "localhost:9092", topic: t, deliveryTimeout: {reports}'
    found = files.load(text[:at] + kafka + text[end:]).errors
    assert [f.code for f in found] == ([] if fits else ["E209"])


@pytest.mark.proves("T5")
@pytest.mark.parametrize(("reports", "fits"), [("9m", True), ("15m", False)])
def test_kafkas_reports_come_before_a_write_without_options_is_given_up(
    files: Files, reports: str, *, fits: bool
) -> None:
    text = files.with_pipeline()
    at = text.rindex("plugin: file")
    text = text[:at] + text[at:].replace("plugin: file", "plugin: kafka", 1)
    at = text.rindex("settings: {")
    kafka = f'settings: {{servers: "localhost:9092", topic: t, deliveryTimeout: {reports}'
    found = files.load(text[:at] + kafka + text[text.index("}", at) :]).errors
    assert [f.code for f in found] == ([] if fits else ["E209"])


@pytest.mark.proves("T5")
@pytest.mark.parametrize(("reports", "fits"), [("59s", True), ("60s", False)])
def test_kafkas_reports_come_before_a_write_of_dead_letters_is_given_up(
    files: Files, reports: str, *, fits: bool
) -> None:
    settings = f'{{servers: "localhost:9092", topic: t, deliveryTimeout: {reports}}}'
    text = files.with_pipeline(destination=f"dead-letter-queue: {{plugin: kafka, settings: {settings}}}")
    assert [f.code for f in files.load(text).errors] == ([] if fits else ["E209"])


@pytest.mark.proves("O6", "X7")
def test_a_journal_does_not_go_with_a_pipe(files: Files) -> None:
    text = files.with_pipeline(source="durability: spool").replace("plugin: file", "plugin: gateway", 1)
    text = text.replace("{path: in.txt}", "{auth: none, pipe: continuous}")
    assert [f.code for f in files.load(text).errors] == ["E209"]


def test_a_breaker_has_defaults_and_is_explained(files: Files) -> None:
    text = files.with_pipeline(destination="delivery: {retry: 2, retry-after-max: 90s, breaker: {failures: 7}}")
    found = files.load(text)
    assert found.findings == []
    [pipeline] = found.pipelines
    assert pipeline.destinations[0].delivery.breaker == Breaker(7, 10.0, 300.0, 90.0)
    said = explain_text(pipeline)
    assert "7 failures in a row, over runs: nothing is sent for 10s, twice as long each time up to 5m" in said
