"""Marks by which rows that come again are left out: the number of the last row, or how far a shard is, as a property of
the table that the rows' own commit sets (ADR 35).

Snapshots are expired by the table's maintenance, properties are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName


@dataclass(frozen=True)
class Mark:
    """A property of the table: `conduit/<pipeline>/<destination>/<epoch or shard>`, its value after the commit, and
    how many of the rows, from the first, the table has already."""

    name: str = ""
    value: str = ""
    had: int = 0

    @property
    def properties(self) -> dict[str, str]:
        return {self.name: self.value} if self.name else {}


def mark_of(rows: Rows, shard: ShardName | None, place: str, properties: Mapping[str, str]) -> Mark:
    """Returns the mark of a commit of these rows; `properties`: those of the table. `place`: pipeline and destination,
    of rows without numbers. Without numbers and shard there is no mark."""
    if rows.numbers is not None:
        return _of_numbers(rows.numbers, properties)
    if shard is not None:
        return _of_shard(rows, f"conduit/{place}/{shard}", properties)
    return Mark()


def _of_numbers(numbers: RowNumbers, properties: Mapping[str, str]) -> Mark:
    """The number of the last row, as a monotonic pipe's receiver keeps it."""
    name = f"conduit/{numbers.pipeline}/{numbers.destination}/{numbers.epoch}"
    had, last = numbers.received(int(properties.get(name, "0")))
    return Mark(name, str(last), had)


def _of_shard(rows: Rows, name: str, properties: Mapping[str, str]) -> Mark:
    """The seal of the micro-batch, and how far in it the shard has come: the seq behind its last row."""
    assert rows.seqs is not None
    seal, _, records = properties.get(name, "0:0").partition(":")
    had = int((rows.seqs < int(records)).sum()) if int(seal) == rows.seal else 0
    return Mark(name, f"{rows.seal}:{rows.last + 1}", had)
