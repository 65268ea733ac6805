"""Messages of PostgreSQL's `pgoutput`, protocol version 1 (PostgreSQL manual, "Logical Replication Message Formats").

Pure: bytes in, messages out. Values are PostgreSQL's text, None for NULL; a column whose large value did not change is
not sent by the server, and is left out.
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
_OLD, _NEW = b"KO", b"N"[0]
"""Bytes in front of an old row (its key, or all of it) and of a new one."""
IGNORED = frozenset(b"YOM")
"""Kinds of messages that change no row: types, origins, logical messages."""

Values = dict[str, str | None]


@dataclass(frozen=True)
class Attribute:
    """A column. `key`: whether it is part of the replica identity; `oid`: its type."""

    name: str
    oid: int
    key: bool


@dataclass(frozen=True)
class Relation:
    """A table as the changes after this message have it. `identity`: d (primary key), f (all columns), i (an index),
    n."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Attribute, ...]


@dataclass(frozen=True)
class Begin:
    """Beginning of a transaction. `lsn`: place of the commit in the log; `committed`: µs since 1970."""

    lsn: int
    committed: int
    xid: int


@dataclass(frozen=True)
class Commit:
    """End of a transaction. `lsn`: as in its Begin; `end`: place at which the log goes on."""

    lsn: int
    end: int


@dataclass(frozen=True)
class Change:
    """Change of one row. `old`: always there for a delete; for an update only if its key changed or the table sends the
    whole old row. `whole`: whether `old` has all columns, not only those of the key."""

    kind: Literal["insert", "update", "delete"]
    relation: Relation
    old: Values | None
    new: Values | None
    whole: bool = False
    unchanged: tuple[str, ...] = ()
    """Columns of the new row that are not sent."""


@dataclass(frozen=True)
class Truncate:
    relations: tuple[Relation, ...]


Message = Begin | Commit | Relation | Change | Truncate


class Decoder:
    """Decoder of messages, which keeps the tables that they named."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}

    def decode(self, data: bytes) -> Message | None:
        """Decodes a message; None if it changes nothing. Raises SourceError if its type is unknown or it is not valid:
        cut, longer than it says, of a table that was not described before."""
        try:
            message, end = self._read(data)
        except (struct.error, LookupError, ValueError):
            raise _none(data) from None
        if end != len(data):  # Also if a text is shorter than it says.
            raise _none(data)
        if isinstance(message, Relation):
            self._relations[message.oid] = message
        return message

    def _read(self, data: bytes) -> tuple[Message | None, int]:
        """Returns the message, and the offset of its end. Raises what reading beyond the end raises."""
        kind = data[0]
        if kind in _CHANGES:
            return self._change(kind, data)
        if kind == BEGIN:
            lsn, committed, xid = struct.unpack_from(">QqI", data, 1)
            return Begin(lsn, committed + POSTGRES_EPOCH_US, xid), 21
        if kind == COMMIT:
            lsn, end = struct.unpack_from(">QQ", data, 2)
            return Commit(lsn, end), 26
        if kind == RELATION:
            return _relation(data)
        if kind == TRUNCATE:
            count = truncated(data, len(data))
            oids = struct.unpack_from(f">{count}I", data, 6)
            return Truncate(tuple(self._relations[oid] for oid in oids)), len(data)
        if kind in IGNORED:
            return None, len(data)
        raise SourceError(f"postgres: a message of type {chr(kind)!r} is none of pgoutput's version 1; report it")

    def _change(self, kind: int, data: bytes) -> tuple[Change, int]:
        (oid,) = struct.unpack_from(">I", data, 1)
        relation = self._relations[oid]
        at, old, whole = 5, None, False
        if kind != INSERT and data[at] in _OLD:
            whole = data[at] == _OLD[1]
            old, _, at = _tuple(data, at + 1, relation)
            if not whole:
                old = {c.name: old.get(c.name) for c in relation.columns if c.key}
        if kind == DELETE:
            if old is None:
                raise _none(data)
            return Change("delete", relation, old, None, whole), at
        if data[at] != _NEW:
            raise _none(data)
        new, unchanged, at = _tuple(data, at + 1, relation)
        if whole and old is not None:
            # A large value that did not change is in the old row.
            new.update({name: old[name] for name in unchanged if name in old})
            unchanged = [name for name in unchanged if name not in new]
        return Change("insert" if kind == INSERT else "update", relation, old, new, whole, tuple(unchanged)), at


def truncated(head: bytes, size: int) -> int:
    """Returns the number of tables that a truncate message of this size names. Raises SourceError if it has no room for
    them."""
    count = int.from_bytes(head[1:5], "big")
    if len(head) < 5 or 6 + 4 * count != size:
        raise _none(head)
    return count


def _none(data: bytes) -> SourceError:
    kind = repr(chr(data[0])) if data else "none"
    return SourceError(
        f"postgres: a message of type {kind} is cut, or is none of pgoutput's version 1; it is read again. If it stays "
        "so, something between here and the server changes it: report it"
    )


def _relation(data: bytes) -> tuple[Relation, int]:
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
        (type_, _modifier) = struct.unpack_from(">Ii", data, at)
        at += 8
        columns.append(Attribute(column, type_, key))
    if identity not in "dfin" or len({column.name for column in columns}) != count:
        raise _none(data)
    # An empty schema name is pg_catalog (manual, "Relation").
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _tuple(data: bytes, at: int, relation: Relation) -> tuple[Values, list[str], int]:
    """Returns (values, names of columns that are not sent, offset of the end). Raises SourceError unless it has every
    column of its table."""
    (count,) = struct.unpack_from(">H", data, at)
    if count != len(relation.columns):
        raise _none(data)
    at += 2
    values: Values = {}
    unchanged: list[str] = []
    for column in relation.columns:
        mark = data[at]
        at += 1
        if mark == 0x74:  # t
            (size,) = struct.unpack_from(">I", data, at)
            at += 4
            values[column.name] = data[at : at + size].decode()
            at += size
        elif mark == 0x6E:  # n
            values[column.name] = None
        elif mark == 0x75:  # u
            unchanged.append(column.name)
        else:
            raise _none(data)
    return values, unchanged, at
