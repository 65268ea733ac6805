"""`conduit dead-letters`: looked at, taken out, sent again and given up from the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.dead_letters import app
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.settings import settings
from tests.delivery.shelf import Place, shelves  # noqa: F401 - a fixture
from tests.micro_batch.harness import run_until_quiet


@pytest.fixture
def place(home: Path) -> Place:
    """Ten records to `d`, of which 3 and 5 were refused; and one that failed before the fan-out."""
    place = Place(home)
    path = home / "include/pipelines/p.yaml"
    bad = "{id: bad, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 7 }}'}"
    path.write_text(f"{path.read_text()}    processors: [{bad}]\n")
    place.feed([(n, f"k{n}") for n in range(10)])
    place.refuse(3, 5)
    run_until_quiet("p")
    return place


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code in (0, 3), result.output
    return result


@pytest.mark.proves("C14")
def test_letters_are_listed_as_a_table_and_as_json(place: Place) -> None:
    table = call("list", "p")
    assert "3 dead letter(s) in p" in table.stderr
    assert "3 is not wanted" in table.stdout
    rows = json.loads(call("list", "p", "--destination", "d", "--format", "json").stdout)
    assert [(row["seq"], row["state"], row["node"]) for row in rows] == [
        (3, "open", "destinations.d"),
        (5, "open", "destinations.d"),
    ]
    assert rows[0]["record"]["payload"]["after"] == {"n": 3, "k": "k3"}


def test_every_command_takes_the_same_filters(place: Place) -> None:
    def seqs(*filters: str) -> list[int]:
        return [row["seq"] for row in json.loads(call("list", "p", "--format", "json", *filters).stdout)]

    id = json.loads(call("list", "p", "--key", "k5", "--format", "json").stdout)[0]["id"]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert seqs() == [7, 3, 5]
    assert seqs("--destination", "_pipeline") == [7]
    assert seqs("--class", "http 400") == seqs("--error-class", "http 400") == [3, 5]
    assert seqs("--key", "k3", "--key", "k5") == [3, 5]
    assert seqs("--id", id) == [5]
    assert seqs("--since", "1h") == seqs("--until", tomorrow) == [7, 3, 5]
    assert seqs("--since", tomorrow) == seqs("--until", "1h") == seqs("--micro-batch", "2") == []
    wrong = CliRunner().invoke(app, ["list", "p", "--since", "yesterday"])
    assert "since" in str(wrong.exception)


def test_one_letter_is_shown_whole(place: Place) -> None:
    id = json.loads(call("list", "p", "--key", "k5", "--format", "json").stdout)[0]["id"]
    (letter,) = json.loads(call("show", "p", id).stdout)
    assert (letter["error"], letter["attempts"], letter["state"]) == ("5 is not wanted", 1, "open")
    assert letter["position"] == letter["record"]["position"]
    missing = CliRunner().invoke(app, ["show", "p", "0" * 32])
    assert "no dead letter of a record" in str(missing.exception)


def test_letters_are_counted_by_class(place: Place) -> None:
    found = json.loads(call("count", "p", "--format", "json").stdout)
    assert found["letters"] == [
        {"destination": "_pipeline", "class": "processor", "state": "open", "letters": 1},
        {"destination": "d", "class": "http 400", "state": "open", "letters": 2},
    ]


@pytest.mark.proves("C14")
def test_that_store_and_index_differ_is_said(place: Place) -> None:
    # Given a letter that only the store has, and one that only the index has
    store = DeadLetterStore(settings().path(settings().dead_letters), "p", "d")
    three, five = store.letters("d")
    with opened("p", "t") as context:
        context.broker.redrives.purge("d", [three.key])
    store.remove("d", {five.key})
    # Then both are said, and neither counts as an open letter that can be sent
    found = call("list", "p", "--destination", "d")
    assert "0 dead letter(s)" in found.stderr
    assert "1 dead letter(s) are in the broker's index only" in found.stderr
    assert "1 letter(s) are in the store only" in found.stderr
    assert "not in the index" in call("list", "p", "--all").stdout


def test_letters_are_exported_as_opencdc_and_as_parquet(place: Place, tmp_path: Path) -> None:
    call("export", "p", str(tmp_path / "out.jsonl"), "--destination", "d")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["payload"]["after"]["n"] for line in lines] == [3, 5]
    assert lines[0]["metadata"]["conduit.dlq.nack.error"] == "3 is not wanted"
    call("export", "p", str(tmp_path / "out.parquet"), "--format", "parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("destination").to_pylist() == ["_pipeline", "d", "d"]


@pytest.mark.proves("X2")
def test_redrive_says_first_what_would_go_and_then_sends_it(place: Place) -> None:
    said = call("redrive", "p", "--dry-run")
    assert "d: 2 dead letter(s) would go" in said.stderr
    assert "_pipeline: 1 dead letter(s) would go" in said.stderr
    assert len(place.got()) == 7
    place.refuse(5)
    sent = call("redrive", "p", "--by", "ada")
    assert sent.exit_code == 3, "one of them is a dead letter again"
    assert place.got()[-1] == 3
    letter = json.loads(call("list", "p", "--all", "--key", "k3", "--format", "json").stdout)[0]
    assert (letter["state"], letter["redrive"]["by"]) == ("redriven", "ada")
    place.refuse()
    assert call("redrive", "p", "--destination", "d").exit_code == 0
    assert place.got()[-1] == 5
    assert call("redrive", "p").exit_code == 3, "its processor is not fixed"
    path = place.home / "include/pipelines/p.yaml"
    path.write_text(path.read_text().replace(".n 7 }}", ".n 77 }}"))
    done = call("redrive", "p", "--destination", "_pipeline")
    assert (done.exit_code, place.got()[-1]) == (0, 7)
    assert "0 dead letter(s)" in call("list", "p").stderr


def test_purging_is_only_done_when_it_is_said_so_and_never_to_what_is_being_redriven(place: Place) -> None:
    assert "2 dead letter(s) in p would be removed" in call("purge", "p", "--destination", "d").stderr
    assert "2 dead letter(s)" in call("list", "p", "--destination", "d").stderr
    with opened("p", "t") as context, context.broker.leases.acquire("destinations.d", "t") as lease:
        (three, _) = DeadLetterStore(settings().path(settings().dead_letters), "p").letters("d")
        context.broker.redrives.claim("d", lease.token, "ada", [three.key])
        kept = call("purge", "p", "--destination", "d", "--yes")
        assert "1 removed" in kept.stderr
        assert "1 stay" in kept.stderr
    left = json.loads(call("list", "p", "--all", "--destination", "d", "--format", "json").stdout)
    assert [row["seq"] for row in left] == [3]
    # Once nobody redrives it any more, it can go
    assert "1 removed" in call("purge", "p", "--destination", "d", "--yes").stderr
    assert call("list", "p", "--all", "--destination", "d").stdout.count("not wanted") == 0


def test_it_says_so_when_there_are_none(home: Path) -> None:
    assert "0 dead letter(s)" in call("list", "p").stderr
