"""Connectors that break their contract: a clear error, nothing lost, and nothing of them left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.acceptance.source import InMemory
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.connectors.standalone import process
from conduit_tasks.connectors.standalone.inbox import Outbox
from conduit_tasks.errors import ConduitError, ConfigError, Refused, SourceError, Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.settings import forget
from tests.connectors.standalone.programs import started_by
from tests.waiting import until

ORIGIN = Origin("p", "c", "")


@pytest.fixture
def notes(home: Path, programs: Path) -> Iterator[Path]:
    """The file in which the connector notes what it is called for; nothing that it started is left afterwards."""
    path = home / "notes"
    yield path
    said = noted(path)
    left = [each[name] for each in said for name in ("pid", "child") if name in each]
    until(lambda: not any(alive(pid) for pid in left), f"the end of {left}")


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def source(mode: str, notes: Path, **settings: str) -> Any:
    made = registry.source_class("standalone:odd")({"mode": mode, "token": "s3cret", "notes": str(notes), **settings})
    made.receipts = InMemory()
    return made


def read(made: Any) -> list[bytes]:
    """Reads as far as it gets."""
    came: list[bytes] = []
    try:
        (slice,) = made.plan({}, Limit())
        for batch in made.read(slice):
            came += batch.column("after").to_pylist()
    finally:
        made.close()
    return came


def rows(count: int) -> Rows:
    records = [Record(str(n).encode(), after=b"row %d" % n, origin=ORIGIN) for n in range(count)]
    return Rows(spool_batch([0] * count, range(count), records), [ORIGIN], 1, 0, count - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("garbage", "no handshake of a connector"),
        ("nothing", "exit code 3.*what shall I say"),
        ("silent", "it printed nothing within"),
        ("protocol-1", "version 1 of the connector protocol"),
        ("nobody", "cannot be reached"),
    ],
)
def test_a_program_that_is_no_connector_says_why(
    home: Path, programs: Path, how: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START", 3.0)
    monkeypatch.setenv("CONDUIT_CONNECTORS_TIMEOUT", "3")
    forget()
    path = started_by(programs, "strange", how)
    with pytest.raises(ConfigError, match=f"strange is no connector that can be run here: .*{says}"):
        registry.source_class("standalone:strange")({})
    until(lambda: not any(str(path) in each.cmdline() for each in mine()), "its end")


def mine() -> list[psutil.Process]:
    out = []
    for each in psutil.Process().children(recursive=True):
        try:
            each.cmdline()
        except psutil.Error:
            continue
        out.append(each)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("crash", "broke off while it was read: its process ended with exit code 7.*about to die"),
        ("twice", "sent the position b'3' twice"),
        ("unplaced", "a record without a position"),
        ("open-hang", "Open did not answer within 2 s"),
    ],
)
def test_a_source_that_breaks_says_why(notes: Path, mode: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_TIMEOUT", "2" if mode == "open-hang" else "60")
    forget()
    with pytest.raises(SourceError, match=says) as raised:
        read(source(mode, notes))
    assert "s3cret" not in str(raised.value)


def test_a_message_over_the_limit_is_named_with_the_setting(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_MESSAGE", "100000")
    forget()
    with pytest.raises(SourceError, match="larger than 100000 bytes, CONDUIT_CONNECTORS_MESSAGE"):
        read(source("large", notes))


def test_what_a_source_sent_before_it_hangs_is_handed_on(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_TIMEOUT", "2")
    forget()
    assert read(source("hang", notes)) == [b"odd 1", b"odd 2", b"odd 3"]


def test_a_source_that_does_not_stop_is_ended(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_TIMEOUT", "2")
    forget()
    assert len(read(source("stop-hang", notes))) == 5


def test_a_source_may_end_by_itself(notes: Path) -> None:
    assert len(read(source("end", notes))) == 5


def test_what_a_connector_started_ends_with_it(notes: Path) -> None:
    read(source("child", notes))
    assert [each for each in noted(notes) if "child" in each]


def test_its_environment_holds_nothing_of_ours(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    read(source("good", notes))
    (environment,) = (each["environment"] for each in noted(notes) if "environment" in each)
    ours = set(os.environ) - set(process.PASSED)
    assert not ours.intersection(environment)
    assert {"CONDUIT_CONNECTOR_ID", "CONDUIT_CONNECTOR_TOKEN", "CONDUIT_PLUGIN_MAGIC_COOKIE"} <= set(environment)


def test_structures_keep_their_values(notes: Path) -> None:
    first = json.loads(read(source("structured", notes))[0])
    assert first == {"n": 1, "half": 0.5, "on": True, "no": None, "of": {"deep": [1, "two", {"x": 3}]}}
    assert isinstance(first["n"], int)


def destination(mode: str, notes: Path, **settings: str) -> Any:
    cls = registry.destination_class("standalone:odd")
    return cls({"mode": mode, "token": "s3cret", "notes": str(notes), **settings})


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("crash", "broke off while it was written to: its process ended with exit code 7"),
        ("hang", "3 of 5 records not acked: it did not answer in time"),
        ("twice", "acked the position b'none of yours', which it was not sent"),
    ],
)
def test_a_destination_that_breaks_is_unavailable_and_what_it_acked_is_not_sent_again(
    notes: Path, mode: str, says: str
) -> None:
    made = destination(mode, notes)
    made.limit = 3.0 if mode == "hang" else 60.0
    made.open(None)
    if mode == "crash":
        threading.Thread(target=tell_acked, args=(made._stream, notes), daemon=True).start()
    try:
        with pytest.raises(Unavailable, match=says):
            made.write(rows(5))
    finally:
        made.close()
    if mode == "twice":
        return
    # When it is opened again and is well
    made.config["mode"] = "good"
    made.limit = 60.0
    made.open(None)
    made.write(rows(5))
    made.close()
    assert [each["record"] for each in noted(notes) if "record" in each] == [f"row {n}" for n in range(5)]


def tell_acked(stream: Any, notes: Path) -> None:
    """Makes the file that the connector waits for before it dies, once two acks have come."""
    until(lambda: len(stream.written) == 2, "two acks")
    Path(f"{notes}.acked").touch()


def test_a_connector_is_told_that_it_is_new_though_another_one_was_the_destination_before(notes: Path) -> None:
    """Given the state that another connector has left, then this one is told that it is new; with its own, that its
    settings have changed."""
    made = destination("good", notes)
    made.open({"config": {"salt": "a", "values": {"mode": "other"}, "digests": {}}, "of": "another"})
    state = made.write(rows(1))
    made.close()
    later = destination("good", notes, count="7")
    later.open(json.loads(json.dumps(state)))
    later.close()
    told = [name for each in noted(notes) for name in ("created", "updated") if name in each]
    assert told == ["created", "updated"]


def test_a_record_that_no_message_holds_is_refused_alone(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_MESSAGE", "10000")
    forget()
    made = destination("good", notes)
    made.open(None)
    records = [Record(b"%d" % n, after=b"x" * size, origin=ORIGIN) for n, size in enumerate((10, 20_000, 10))]
    with pytest.raises(Refused, match="more than a message to a connector may have") as raised:
        made.write(Rows(spool_batch([0] * 3, range(3), records), [ORIGIN], 1, 0, 2))
    assert raised.value.row == 1
    big = Record(b"9", after={"n": 2**53 + 1}, origin=ORIGIN)
    with pytest.raises(Refused, match=r"'n' is 9007199254740993.*doubles"):
        made.write(Rows(spool_batch([0], [3], [big]), [ORIGIN], 1, 3, 3))
    made.close()


HOST = """
import sys, time
from pathlib import Path
from tests.connectors.standalone.test_breaking import source
from conduit_tasks.connectors.base import Limit
made = source(sys.argv[1], Path(sys.argv[2]))
(slice,) = made.plan({}, Limit())
for batch in made.read(slice):
    print("reading", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_connector_and_what_it_started_end_with_the_task_that_was_killed(home: Path, notes: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, "child", str(notes)],
        stdout=subprocess.PIPE,
        env={**os.environ, "CONDUIT_HOME": str(home)},
        cwd=Path(__file__).parents[3],
    )
    assert host.stdout is not None
    with host:
        assert host.stdout.readline() == b"reading\n"
        assert all(alive(each[name]) for each in noted(notes) for name in ("pid", "child") if name in each)
        host.kill()


def opened(made: Any) -> Any:
    return made.open(None)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_secret_that_a_connector_tells_is_hidden_in_its_errors_and_log(
    notes: Path, caplog: pytest.LogCaptureFixture, side: str
) -> None:
    secret = 'p@ss"word/1'
    made = (source if side == "source" else destination)("tells", notes, token=secret)
    begin = read if side == "source" else opened
    with pytest.raises(ConduitError, match=r"no login as [*]{3}, nor to db://u:[*]{3}@h") as raised:
        begin(made)
    until(lambda: "no login as ***" in caplog.text, "a line")
    for form in (secret, quote(secret, safe="")):
        assert form not in f"{caplog.text} {raised.value}"


def test_its_log_lines_become_ours(notes: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(source("good", notes, count="2"))
    until(lambda: any("configured count=2" in each.getMessage() for each in caplog.records), "a line")
    (line,) = (each for each in caplog.records if "configured" in each.getMessage())
    assert line.levelname == "WARNING"
    assert line.getMessage() == "standalone:odd: configured count=2"
    assert issubclass(Unavailable, ConduitError)


def versions(*texts: str) -> Rows:
    """Rows of one position, as of a row that has changed while it was read (`singer` names it by its key)."""
    records = [Record(b"key", after=text.encode(), origin=ORIGIN) for text in texts]
    return Rows(spool_batch([0] * len(records), range(len(records)), records), [ORIGIN], 1, 0, len(records) - 1)


def test_records_of_one_id_are_told_apart_when_a_write_is_repeated(notes: Path) -> None:
    """Given records of one position, of which the connector acked the first two before it died, then the others are
    sent when it is opened again."""
    made = destination("crash", notes)
    made.limit = 60.0
    made.open(None)
    threading.Thread(target=tell_acked, args=(made._stream, notes), daemon=True).start()
    given = [f"version {n}" for n in range(5)]
    with pytest.raises(Unavailable, match="exit code 7"):
        made.write(versions(*given))
    made.config["mode"] = "good"
    made.open(None)
    made.write(versions(*given))
    made.close()
    assert [each["record"] for each in noted(notes) if "record" in each] == given


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "destination"])
def test_one_that_dies_or_does_not_answer_leaves_no_thread(notes: Path, side: str) -> None:
    def die() -> None:
        with suppress(SourceError, Unavailable):
            if side == "source":
                read(source("crash", notes))
                return
            settings = {"mode": "crash", "token": "s3cret", "notes": str(notes)}
            made = registry.destination_class("standalone:odd")(settings)
            made.limit = 0.5  # it takes what is written, and does not answer
            try:
                made.open(None)
                made.write(rows(5))
            finally:
                made.close()

    def waiting() -> int:
        """Threads of gRPC that wait for a next request."""
        stacks = [[frame.f_code for frame, _ in walk_stack(each)] for each in sys._current_frames().values()]
        return sum(Outbox.__next__.__code__ in stack for stack in stacks)

    before = waiting()
    for _ in range(4):
        die()
    until(lambda: waiting() <= before)
