"""The demo's account: the broker's counts, compared with the contents of the sources and destinations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.cli.output import print_table
from conduit_tasks.operate.status import snapshot
from conduit_tasks.settings import settings


@dataclass
class Line:
    """Counts of one destination. `held`: records that it holds itself; `duplicates`: records that it got again."""

    id: str
    matched: int
    filtered: int
    delivered: int
    retried: int
    dead: int
    held: int | None = None
    duplicates: int | None = None


@dataclass
class Account:
    """Counts of all records read, and their destinations. `faults`: every sum that is wrong."""

    read: int
    dead_before_fan_out: int
    acked: dict[str, dict[str, Any]]
    destinations: list[Line]
    faults: list[str] = field(default_factory=list)


def account(pipeline: str, receiver_url: str, *, contents: bool = True) -> Account:
    """Returns the account of a pipeline; `contents`: also checks the files, the table and the receiver."""
    found = snapshot(pipeline)
    lines = [
        Line(d["id"], d["matched"], d["filtered"], d["delivered"] + d["completed"], d["retried"], d["dead"])
        for d in found["destinations"]
    ]
    acked = {s["id"]: s["acked"] for s in found["sources"]}
    result = Account(sum(s["read"] for s in found["sources"]), found["dead_before_fan_out"], acked, lines)
    if not contents:
        return result
    for s in found["sources"]:
        if s["acked"] != s["planned"]:
            result.faults.append(f"source {s['id']} is not acked up to what was read")
    _sizes(found, result)
    for one in lines:
        if one.matched != one.delivered + one.filtered + one.dead:
            result.faults.append(
                f"{one.id}: {one.matched:,} matched, but {one.delivered:,} delivered, "
                f"{one.filtered:,} filtered and {one.dead:,} dead letter{'' if one.dead == 1 else 's'}"
            )
        one.held, one.duplicates = CONTENTS[one.id](receiver_url)
        if one.held != one.delivered:
            result.faults.append(f"{one.id}: {one.delivered:,} delivered, but it holds {one.held:,}")
    seen = _receiver(receiver_url)
    if seen["out_of_order"] or seen["ordered"] != seen["accepted"]:
        result.faults.append(
            f"the receiver saw {seen['out_of_order']:,} events out of order, and could tell the order of "
            f"{seen['ordered']:,} of {seen['accepted']:,}"
        )
    return result


def _sizes(found: dict[str, Any], result: Account) -> None:
    """Checks that every file is read to its end: its acked position is its size, and all lines but the headers were
    read."""
    rows = 0
    for source in found["sources"]:
        for part, token in source["acked"].items():
            path = Path(settings().path(part))
            offset = _offset(token)
            if offset != path.stat().st_size:
                result.faults.append(f"{part}: acked up to {offset:,} of {path.stat().st_size:,} bytes")
            with path.open("rb") as file:
                rows += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1
    if rows != result.read:
        result.faults.append(f"the files hold {rows:,} flights, but {result.read:,} were read")


def _offset(token: dict[str, int]) -> int:
    """Returns the byte offset in a file source's token."""
    return token["offset"]


def _archive(_: str) -> tuple[int, int]:
    import hashlib

    path = Path(settings().path("out/archive.jsonl"))
    if not path.exists():
        return 0, 0
    seen: set[bytes] = set()
    count = 0
    with path.open("rb") as file:
        for row in file:
            count += 1
            seen.add(hashlib.blake2b(row, digest_size=12).digest())
    return count, count - len(seen)


def _receiver(url: str) -> dict[str, Any]:
    import httpx

    found: dict[str, Any] = httpx.get(f"{url}/summary", timeout=10).json()
    return found


def _delays(url: str) -> tuple[int, int]:
    summary = _receiver(url)
    return summary["accepted"], summary["duplicates"]


def _carriers(_: str) -> tuple[int, int]:
    import os

    import sqlalchemy

    from conduit_tasks.connectors.sql.url import with_driver

    path = Path(settings().path("out/flights.db"))
    url = os.environ.get("DATABASE_URL") or f"sqlite:///{path}"
    if url.startswith("sqlite") and not path.exists():
        return 0, 0
    engine = sqlalchemy.create_engine(with_driver(sqlalchemy.make_url(url)))
    try:
        with engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table("carriers"):
                return 0, 0
            row = connection.execute(sqlalchemy.text("SELECT count(*), count(DISTINCT id) FROM carriers")).one()
            return row[0], row[0] - row[1]
    finally:
        engine.dispose()


CONTENTS = {"archive": _archive, "delays": _delays, "carriers": _carriers}


def print_account(found: Account) -> None:
    """Prints a table with a row per destination, and the acked position of each source partition."""
    names = ("destination", "matched", "filtered", "delivered", "retried", "dead-lettered", "it holds", "duplicates")
    print_table(
        names,
        [
            (d.id, d.matched, d.filtered, d.delivered, d.retried, d.dead, d.held, d.duplicates)
            for d in found.destinations
        ],
    )
    print(f"\nread {found.read:,} events; dead letters before the fan-out: {found.dead_before_fan_out:,}\n")
    rows = [
        (source, Path(part).name, _offset(token)) for source, at in found.acked.items() for part, token in at.items()
    ]
    print_table(("source", "partition", "acked up to byte"), rows)
