"""Parquet files, read and written by the file connector; crashes of a real process between any two of its steps."""

from __future__ import annotations

import datetime
import json
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit, Slice
from conduit_tasks.connectors.file import settle
from conduit_tasks.connectors.file.connector import FileDestination, FileSource
from conduit_tasks.connectors.file.folder import FileFolder
from conduit_tasks.connectors.file.partitions import pieces
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import ConfigError, Refused, SourceError, Unavailable
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch, to_records
from tests.connectors.clock import Clock

ORIGIN = Origin("p", "in", "")


def rows(*payloads: Any, first: int = 0) -> Rows:
    records = [Record(b"%d" % (first + n), after=p, origin=ORIGIN) for n, p in enumerate(payloads)]
    numbers = np.arange(first, first + len(records)).tolist()
    return Rows(spool_batch([0] * len(records), numbers, records), [ORIGIN], 1, first, first + len(records) - 1)


def destination(**settings: str) -> FileDestination:
    made = FileDestination(
        {"path": "out", "format": "parquet", **{k.replace("_", "-"): v for k, v in settings.items()}}
    )
    made.pipeline, made.connector = "flights", "tables"
    return made


def written(home: Path) -> list[dict[str, Any]]:
    files = sorted((home / "out").rglob("*.parquet"), key=lambda f: f.name)
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def read_all(source: FileSource, limit: Limit) -> tuple[list[Record], int]:
    """Everything, and in how many plans."""
    position: dict[str, Any] = {}
    records: list[Record] = []
    plans = 0
    while slices := source.plan(position, limit):
        plans += 1
        for slice in slices:
            for batch in source.read(Slice(**json.loads(json.dumps(slice.__dict__)))):
                records += to_records(batch, ORIGIN)
            position[slice.part] = slice.end
    return records, plans


@pytest.mark.proves("C9")
def test_rows_are_records_in_order_with_faithful_values_whatever_the_slices(home: Path) -> None:
    # Given two files of several row groups, with values JSON does not have
    (home / "in").mkdir()
    day = datetime.date(2013, 3, 1)
    for name, first in (("b", 5000), ("a", 0)):
        table = pa.table(
            {
                "n": range(first, first + 5000),
                "price": [Decimal("1.10")] * 5000,
                "day": [day] * 5000,
                "raw": [b"\xff"] * 5000,
                "list": [[1, None]] * 5000,
                "none": pa.nulls(5000, pa.string()),
            }
        )
        pq.write_table(table, home / "in" / f"{name}.parquet", row_group_size=700)
    source = FileSource({"path": "in/*.parquet", "format": "parquet", "key": "n", "slice-bytes": "20kB"})
    # When they are read in micro-batches of 3,000
    records, plans = read_all(source, Limit(records=3000))
    # Then every row is there once, in name order
    assert [r.after["n"] for r in records] == list(range(10_000))  # type: ignore[index]  # structured
    assert plans == 4
    expected = {"n": 7, "price": "1.10", "day": "2013-03-01", "raw": "/w==", "list": [1, None], "none": None}
    assert (records[7].after, records[7].key) == (expected, b"7")
    assert len({r.position for r in records}) == 10_000
    assert records[5001].position == b"in/b.parquet:1"


def test_a_slice_reads_the_same_again_and_a_replaced_file_is_an_error(home: Path) -> None:
    path = home / "a.parquet"
    pq.write_table(pa.table({"n": range(10)}), path)
    source = FileSource({"path": "a.parquet", "format": "parquet"})
    [slice] = source.plan({}, Limit(records=4))
    assert (slice.records, slice.end["row"]) == (4, 4)
    once, again = (list(source.read(slice)) for _ in range(2))
    assert once[0].equals(again[0])
    pq.write_table(pa.table({"n": range(20)}), path)
    with pytest.raises(SourceError, match=r"a\.parquet was replaced after 4 of its rows"):
        list(source.read(slice))
    with pytest.raises(SourceError, match="was replaced"):
        source.plan({"a.parquet": slice.end}, Limit())


def test_a_file_that_is_not_whole_is_waited_for_and_then_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "time", clock := Clock())
    (home / "a.parquet").write_bytes(b"PAR1 and then nothing")
    pq.write_table(pa.table({"n": [1]}), home / "b.parquet")
    settings = {"path": "*.parquet", "format": "parquet", "settle": "1h"}
    assert FileSource(settings).plan({}, Limit()) == []
    assert [s.part for s in FileSource({**settings, "partition-by": "file"}).plan({}, Limit())] == ["b.parquet"]
    clock.go(3700)
    with pytest.raises(SourceError, match=r"a\.parquet is no whole Parquet file"):
        FileSource(settings).plan({}, Limit())


@pytest.mark.parametrize("inner", [False, True])
def test_two_columns_of_one_name_are_named_and_none_is_lost(home: Path, inner: bool) -> None:
    one, two = pa.array([1]), pa.array([2])
    columns = [pa.StructArray.from_arrays([one, two], names=["a", "a"])] if inner else [one, two]
    pq.write_table(pa.table(columns, names=["s"] if inner else ["a", "a"]), home / "in.parquet")
    source = FileSource({"path": "in.parquet", "format": "parquet", "settle": "0s"})
    with pytest.raises(SourceError, match=r"in\.parquet: .*two columns have the name 'a'"):
        read_all(source, Limit(records=10))


def test_an_empty_file_has_no_records(home: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), home / "a.parquet")
    assert FileSource({"path": "a.parquet", "format": "parquet"}).plan({}, Limit()) == []


@pytest.mark.usefixtures("home")
def test_the_connector_keeps_its_contract() -> None:
    source = {"path": "out/*.parquet", "format": "parquet"}
    accept("file", source=source, destination={"path": "out", "format": "parquet"}).require()


@pytest.mark.proves("B8")
def test_what_was_not_confirmed_is_taken_away_and_what_was_stays(home: Path) -> None:
    one = destination()
    one.open(None)
    state = one.write(rows({"n": 0}, {"n": 1}))
    one.write(rows({"n": 2}, first=2))  # confirmed by nobody
    one.close()
    two = destination()
    two.open(state)
    assert written(home) == [{"n": 0}, {"n": 1}]
    state = two.write(rows({"n": 2}, {"n": 3}, first=2))
    two.close()
    two.open(state)
    two.close()
    assert [row["n"] for row in written(home)] == [0, 1, 2, 3]


@pytest.mark.proves("C10")
def test_a_state_that_another_plugin_left_takes_nothing_away_but_what_is_written_behind_it(home: Path) -> None:
    """Given files that this destination wrote and never saw confirmed, and the state of what the destination was since,
    then all of them are kept, and a write that is not confirmed is taken away."""
    state = {"path": "out/a.jsonl", "size": 3, "owner": "a"}
    out = destination()
    out.open(None)
    out.write(rows({"n": 0}))
    for _ in range(2):
        out.open(state)
        assert [row["n"] for row in written(home)] == [0]
        confirmed = out.write(rows({"n": 1}, first=1))
    for _ in range(2):
        out.open(confirmed)
        assert [row["n"] for row in written(home)] == [0, 1]
        out.write(rows({"n": 2}, first=2))
    out.close()


@pytest.mark.proves("B8")
def test_a_state_from_long_ago_takes_everything_behind_it_away(home: Path) -> None:
    one = destination(partition_by="day")
    one.open(None)
    states = [one.write(rows({"n": n, "day": f"2013-03-{n:02}"}, first=n)) for n in range(1, 6)]
    one.close()
    one.open(states[1])
    one.close()
    assert sorted(row["n"] for row in written(home)) == [1, 2]


def test_partitions_are_folders_and_no_value_leads_out_of_them(home: Path) -> None:
    out = destination(partition_by="carrier, year")
    out.open(None)
    values = ["UA", "../../etc", None, "a/b", ""]
    out.write(rows(*({"carrier": c, "year": 2013, "n": n} for n, c in enumerate(values))))
    out.close()
    files = [f.relative_to(home / "out") for f in (home / "out").rglob("*.parquet")]
    assert {f.parts[0] for f in files} == {
        "carrier=UA",
        "carrier=%2E%2E%2F%2E%2E%2Fetc",
        "carrier=__HIVE_DEFAULT_PARTITION__",
        "carrier=a%2Fb",
    }
    assert {len(f.parts) for f in files} == {3}
    assert pq.read_table(home / "out" / files[0], partitioning=None).column_names == ["n"]
    # As others read such folders
    assert sorted(pq.read_table(home / "out").column("n").to_pylist()) == [0, 1, 2, 3, 4]


@pytest.mark.proves("C10")
def test_no_row_is_lost_where_values_are_hard_to_tell_apart(home: Path) -> None:
    values: dict[str, list[Any]] = {
        "text": [None, "__HIVE_DEFAULT_PARTITION__", "", "a"],
        "number": [0.0, -0.0, float("nan"), None, float("nan")],
        "yes": [True, None, False, True],
    }
    for field, held in values.items():
        folder = FileFolder(home / field, "p.d", "parquet", lambda: None)
        folder.open(None)
        folder.write(pieces(pa.table({"n": range(len(held)), field: held}), [field]), rows())
        folder.close()
        files = list((home / field).rglob("*.parquet"))
        found = [n for file in files for n in pq.ParquetFile(file).read().column("n").to_pylist()]
        assert sorted(found) == list(range(len(held)))
    names = {path.name for path in (home / "text").iterdir() if path.is_dir()}
    assert names == {"text=__HIVE_DEFAULT_PARTITION__", "text=%5F_HIVE_DEFAULT_PARTITION__", "text=a"}


@pytest.mark.proves("T6")
def test_a_value_too_long_for_a_folder_is_refused_and_the_next_write_goes_on(home: Path) -> None:
    out = destination(partition_by="carrier, day")
    out.open(None)
    with pytest.raises(Refused, match="too long"):
        out.write(rows({"n": 1, "carrier": "UA", "day": "d"}, {"n": 2, "carrier": "UA", "day": "d" * 300}))
    out.open(None)
    out.write(rows({"n": 1, "carrier": "UA", "day": "d"}))
    out.close()
    assert pq.read_table(home / "out").column("n").to_pylist() == [1]


def test_two_destinations_share_a_folder_and_two_writers_of_one_do_not(home: Path) -> None:
    one, other = destination(), destination()
    other.connector = "more"
    one.open(None)
    other.open(None)
    one.write(rows({"n": 1}))
    other.write(rows({"n": 2}))
    with pytest.raises(Unavailable, match="another process"):
        destination().open(None)
    one.close()
    other.close()
    assert sorted(row["n"] for row in written(home)) == [1, 2]


@pytest.mark.proves("C10")
def test_without_a_state_confirmed_files_stay_and_others_go(home: Path) -> None:
    # Given a writer without a pipeline, which says at its end that all is well
    out = destination()
    for n in (1, 2):
        out.open(None)
        out.write(rows({"n": -n}))
        # When an attempt fails, and the next one begins again
        out.open(None)
        out.write(rows({"n": n}))
        out.open(out.write(rows({"n": n + 10})))
        out.close()
    # Then what each of them confirmed is there, once
    assert sorted(row["n"] for row in written(home)) == [1, 2, 11, 12]


def test_a_ledger_and_a_state_of_an_older_version_are_believed(home: Path) -> None:
    out = destination()
    out.open(None)
    out.write(rows({"n": 1}))
    out.write(rows({"n": 2}))
    out.close()
    path = home / "out/.flights.tables.conduit"
    told = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({"n": told["n"], "files": told["files"]}))
    out.open({"n": 1})
    state = out.write(rows({"n": 3}))
    out.open(state)
    out.close()
    assert sorted(row["n"] for row in written(home)) == [1, 3]


def test_whole_records_have_columns_of_fixed_types(home: Path) -> None:
    out = destination(rows="opencdc")
    out.open(None)
    gone = Record(b"9", "delete", {"m": "1"}, b"k", {"n": 1}, None, origin=ORIGIN)
    out.write(Rows(spool_batch([0], [0], [gone]), [ORIGIN], 1, 0, 0))
    out.close()
    [row] = written(home)
    assert (row["id"], row["operation"], row["key"], row["after"]) == (gone.id, "delete", '"k"', None)
    assert (orjson.loads(row["before"]), dict(row["metadata"])) == ({"n": 1}, {"m": "1"})


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("payloads", "said"),
    [([b"raw"], "no row"), ([{"n": 1}, {"n": "x"}], "field 'n'"), ([{"n": 2**63}, {"n": -1}], "field 'n'")],
)
def test_what_is_no_row_is_refused_and_leaves_nothing(payloads: list[Any], said: str) -> None:
    out = destination()
    out.open(None)
    with pytest.raises(Refused, match=said):
        out.write(rows(*payloads))
    out.close()
    assert not list(out.path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition-by": "x"}, "partition-by"),
        ({"format": "parquet", "rows": "opencdc", "partition-by": "x"}, "partition-by"),
        ({"format": "parquet", "rows-per-file": "0"}, "rows-per-file"),
    ],
)
def test_options_that_do_not_go_together_are_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FileDestination({"path": "out", **settings})


def killed_at(step: int) -> None:
    """Writes twice; this process is killed before operation `step` of the second time, if it has so many."""
    out, done = destination(partition_by="day"), 0

    def counted(call: Any) -> Any:
        def counting(*args: Any, **more: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return counting

    out.open(None)
    out.write(rows({"n": 0, "day": "a"}, {"n": 1, "day": "b"}))
    for module, name in ((os, "fsync"), (os, "open"), (pq, "write_table")):
        setattr(module, name, counted(getattr(module, name)))
    out.write(rows({"n": 2, "day": "a"}, {"n": 3, "day": "c"}, first=2))


@pytest.mark.proves("C10", "B8")
def test_a_kill_between_any_two_steps_leaves_what_was_confirmed(home: Path) -> None:
    steps = 0
    while True:
        steps += 1
        for path in (home / "out").rglob("*.parquet"):
            path.unlink()
        (home / "out" / ".flights.tables.conduit").unlink(missing_ok=True)
        try:
            in_child(killed_at, steps)
            killed = False
        except ChildDied as died:
            assert died.how == "signal 9"  # noqa: PT017 - or the last one has ended
            killed = True
        again = destination(partition_by="day")
        again.open({"n": 1})
        assert sorted(row["n"] for row in written(home)) == [0, 1], f"killed at step {steps}"
        assert not list((home / "out").rglob("*.parquet.tmp"))
        again.write(rows({"n": 2, "day": "a"}, {"n": 3, "day": "c"}, first=2))
        again.close()
        assert sorted(row["n"] for row in written(home)) == [0, 1, 2, 3]
        if not killed:
            break
    assert steps > 8
