"""Messages of PostgreSQL's `pgoutput`, protocol version 1 (PostgreSQL manual, "Logical Replication Message Formats").

Pure: bytes in, what they say out. Values are PostgreSQL's text, None for NULL; a column whose large value was not
changed, and is therefore not told, is left out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from conduit_tasks.errors import SourceError

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970."""

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
_CHANGES = frozenset((INSERT, UPDATE, DELETE))
IGNORED = frozenset(b"YOM")
"""Types, origins, logical messages: they change no row."""

Values = dict[str, str | None]


@dataclass(frozen=True)
class Attribute:
    """A column: `key` says whether it is of the replica identity; `oid`: its type."""

    name: str
    oid: int
    key: bool


@dataclass(frozen=True)
class Relation:
    """A table as the changes after it have it. `identity`: d (primary key), f (all columns), i (an index), n."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Attribute, ...]


@dataclass(frozen=True)
class Begin:
    """`lsn`: where the commit lies in the log; `committed`: µs since 1970."""

    lsn: int
    committed: int
    xid: int


@dataclass(frozen=True)
class Commit:
    """`lsn`: as in its Begin; `end`: where the log goes on."""

    lsn: int
    end: int


@dataclass(frozen=True)
class Change:
    """One row. `old`: of an update only where its key changed or the table tells it all; of a delete always.
    `whole`: whether `old` has all columns, not only those of the key."""

    kind: Literal["insert", "update", "delete"]
    relation: Relation
    old: Values | None
    new: Values | None
    whole: bool = False
    unchanged: tuple[str, ...] = ()
    """Columns of `new` that are not told."""


@dataclass(frozen=True)
class Truncate:
    relations: tuple[Relation, ...]


Message = Begin | Commit | Relation | Change | Truncate


class Decoder:
    """Keeps the tables that the messages named."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}

    def decode(self, data: bytes) -> Message | None:
        """What the message says, None where it changes nothing. Raises SourceError on one that is not known."""
        kind = data[0]
        if kind in _CHANGES:
            return self._change(kind, data)
        if kind == BEGIN:
            lsn, committed, xid = struct.unpack_from(">QqI", data, 1)
            return Begin(lsn, committed + POSTGRES_EPOCH_US, xid)
        if kind == COMMIT:
            lsn, end = struct.unpack_from(">QQ", data, 2)
            return Commit(lsn, end)
        if kind == RELATION:
            return self._relation(data)
        if kind == TRUNCATE:
            _, _, *oids = struct.unpack_from(f">IB{truncated(data)}I", data, 1)
            return Truncate(tuple(self._relations[oid] for oid in oids))
        if kind in IGNORED:
            return None
        raise SourceError(f"postgres: a message of type {chr(kind)!r} is none of pgoutput's version 1; report it")

    def _relation(self, data: bytes) -> Relation:
        (oid,) = struct.unpack_from(">I", data, 1)
        schema, at = _text(data, 5)
        name, at = _text(data, at)
        identity = chr(data[at])
        (count,) = struct.unpack_from(">H", data, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            key = bool(data[at] & 1)
            column, at = _text(data, at + 1)
            (type_,) = struct.unpack_from(">I", data, at)
            at += 8
            columns.append(Attribute(column, type_, key))
        # An empty schema name is pg_catalog (manual, "Relation").
        relation = Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))
        self._relations[oid] = relation
        return relation

    def _change(self, kind: int, data: bytes) -> Change:
        (oid,) = struct.unpack_from(">I", data, 1)
        relation = self._relations[oid]
        at, old, whole = 5, None, False
        if data[at : at + 1] in (b"K", b"O"):
            whole = data[at : at + 1] == b"O"
            old, _, at = _tuple(data, at + 1, relation)
            if not whole:
                old = {c.name: old.get(c.name) for c in relation.columns if c.key}
        if kind == DELETE:
            return Change("delete", relation, old, None, whole)
        new, unchanged, _ = _tuple(data, at + 1, relation)
        if whole and old is not None:
            # A large value that did not change is in the old row.
            new.update({name: old[name] for name in unchanged if name in old})
            unchanged = [name for name in unchanged if name not in new]
        return Change("insert" if kind == INSERT else "update", relation, old, new, whole, tuple(unchanged))


def truncated(data: bytes) -> int:
    """How many tables a truncate message names."""
    return int(struct.unpack_from(">I", data, 1)[0])


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _tuple(data: bytes, at: int, relation: Relation) -> tuple[Values, list[str], int]:
    """(values, names of those that are not told, where it ends)."""
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    values: Values = {}
    unchanged: list[str] = []
    for column in relation.columns[:count]:
        mark = data[at]
        at += 1
        if mark == 0x6E:  # n
            values[column.name] = None
        elif mark == 0x75:  # u
            unchanged.append(column.name)
        else:
            (size,) = struct.unpack_from(">I", data, at)
            at += 4
            values[column.name] = data[at : at + size].decode()
            at += size
    return values, unchanged, at
