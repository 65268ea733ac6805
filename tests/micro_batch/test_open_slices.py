"""Sources that know only after reading what they have read: queues, and feeds that go from page to page."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import settings
from tests.micro_batch.endings import OPERATIONS, Crash, crash_at, ends_of
from tests.micro_batch.harness import here, lines, run_once, run_until_quiet, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    spool: {{retention: 0s}}
    micro-batch: {{max-records: 4}}
    lag-budget: {{records: 100}}
    connectors:
      - {{id: in, type: source, plugin: {plugin}, settings: {{path: {path}{more}}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.txt, format: payload}}}}
"""


@pytest.fixture(autouse=True)
def connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("folder-queue", "folder_queue"), ("paged-feed", "paged_feed")):
        monkeypatch.setitem(registry.BUILTIN, name, f"tests.micro_batch.{module}")


def queue(home: Path, count: int, more: str = "") -> Path:
    folder = home / "queue"
    folder.mkdir()
    for n in range(count):
        (folder / f"{n:03}.new").write_text(f"message {n}")
    write_pipeline(home, "p", PIPELINE.format(plugin="folder-queue", path="queue", more=more))
    return folder


def visible_again(folder: Path) -> None:
    """What the visibility timeout does."""
    for path in folder.glob("*.hidden"):
        path.rename(path.with_suffix(".new"))


@pytest.mark.proves("T2", "C11")
@pytest.mark.parametrize("parallel", [1, 3])
def test_every_message_is_delivered_and_deleted_once(home: Path, parallel: int) -> None:
    folder = queue(home, 10, f', parallel: "{parallel}"')
    run_until_quiet("p")
    expected = [f"message {n}" for n in range(10)]
    assert sorted(lines(home / "out.txt"), key=lambda m: int(m.split()[1])) == expected
    assert sorted(lines(folder / "deleted")) == [f"{n:03}" for n in range(10)]
    assert not list(folder.glob("*.hidden"))
    # The state does not grow with the messages
    client = connect(settings())
    assert client.hlen(state("p").keys.planned("in")) == parallel
    client.close()


@pytest.mark.proves("T2", "I1")
def test_nothing_is_deleted_before_it_is_sealed(home: Path) -> None:
    # Given a micro-batch that was read and not sealed
    folder = queue(home, 3)
    plan_run("p", "run")

    def unsealed(*_: object) -> str:
        return ""

    with pytest.MonkeyPatch.context() as patch, opened("p", "run") as context:
        patch.setattr("conduit_tasks.micro_batch.read.seal_if_complete", unsealed)
        read_source(context, "in", here, 5.0)
    assert len(list(folder.glob("*.hidden"))) == 3
    assert not (folder / "deleted").exists()
    # When the run goes on, the messages are sealed and only then deleted
    run_once("p", "again")
    assert len(lines(folder / "deleted")) == 3
    assert len(lines(home / "out.txt")) == 3


@pytest.mark.proves("T2", "C16")
def test_what_was_read_under_a_file_that_changed_is_asked_for_again(home: Path) -> None:
    # Given messages that were read and staged, and a pipeline file that then changes
    folder = queue(home, 3)
    plan_run("p", "run")
    with pytest.MonkeyPatch.context() as patch, opened("p", "run") as context:
        patch.setattr("conduit_tasks.micro_batch.read.seal_if_complete", lambda *_: "")
        read_source(context, "in", here, 5.0)
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    (home / "include" / "pipelines" / "p.yaml").write_text(text.replace("max-records: 4", "max-records: 5"))
    # When it runs, the stage is dropped: the messages are hidden, nothing of them is deleted or delivered
    run_once("p", "changed")
    assert lines(home / "out.txt") == []
    assert not lines(folder / "deleted")
    visible_again(folder)
    run_until_quiet("p")
    assert sorted(lines(home / "out.txt")) == [f"message {n}" for n in range(3)]
    assert sorted(set(lines(folder / "deleted"))) == ["000", "001", "002"]


@pytest.mark.proves("C9", "C12", "I2", "I3")
def test_a_feed_goes_on_where_reading_ended(home: Path) -> None:
    (home / "feed").write_text("8")
    write_pipeline(home, "p", PIPELINE.format(plugin="paged-feed", path="feed", more=""))
    run_until_quiet("p")
    (home / "feed").write_text("10")
    run_until_quiet("p")
    assert lines(home / "out.txt") == [str(n) for n in range(10)]
    assert (home / "acked").read_text() == '{"": 10}'
    assert state("p").positions.planned("in") == {"": 10}


@pytest.mark.proves("T2", "C10", "I1", "I3", "I5")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("plugin", ["folder-queue", "paged-feed"])
def test_a_crash_between_any_two_operations_loses_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, after: bool
) -> None:

    def begin(number: int) -> Path:
        place = home / str(number)
        folder = place / "queue"
        folder.mkdir(parents=True)
        for n in range(6):
            (folder / f"{n:03}.new").write_text(str(n))
        (place / "feed").write_text("6")
        path = f"{number}/{'queue' if plugin == 'folder-queue' else 'feed'}"
        text = PIPELINE.format(plugin=plugin, path=path, more="").replace("id: p\n", f"id: p{number}\n")
        write_pipeline(home, "p", text.replace("out.txt", f"{number}/out.txt"))
        return place

    begin(0)
    with monkeypatch.context() as patch:
        ends = ends_of(patch, OPERATIONS, after)
        run_once("p0")
    for number in ends():
        place = begin(number)
        with monkeypatch.context() as patch, suppress(Crash):
            crash_at(patch, OPERATIONS, number, after)
            run_once(f"p{number}")
        # The leases of who died run out, and so does the time in which its messages are hidden.
        client = connect(settings())
        for key in client.scan_iter("*:lease:*"):
            client.delete(key)
        client.close()
        visible_again(place / "queue")
        run_until_quiet(f"p{number}")
        got = lines(place / "out.txt")
        assert set(got) == {str(n) for n in range(6)}, f"crashed at {number}: {got}"
        if plugin == "paged-feed":
            assert got == [str(n) for n in range(6)]
        else:
            deleted = lines(place / "queue" / "deleted")
            assert sorted(set(deleted)) == [f"{n:03}" for n in range(6)]
            assert not list((place / "queue").glob("*.hidden"))
    assert len(ends()) > (5 if after else 10)
