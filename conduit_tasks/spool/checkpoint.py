"""Files of marks, by which a loss of Redis' state of a cursor or an ack is repaired: which mark of a node counts, and
up to which micro-batch (SEMANTICS X7).

    <spool>/<pipeline>/checkpoint/<node>-<token>.json      node: destinations.<id> or acks.<source>
    <spool>/<pipeline>/checkpoint/collected-<m>.json       files up to micro-batch m may be gone: nobody needed them

A mark is written aside and renamed by the holder of the node's lease, whose fencing token it carries. The mark with the
newest token counts; one that a fenced holder still writes is never read. A source's mark is also written before the
source is told anything: records that cannot be read again are acked only when the spool says so
(docs/adr/0012-the-spool-is-told-first.md).

The marks of an id that is forgotten, or has another name now, are not just removed: a power cut may bring a removed
file back, and a fenced holder may write one again. A mark that says `gone`, durable and with a newer token, stands
before them; the next one to have that id writes a newer one still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import orjson

from conduit_tasks.errors import SpoolError
from conduit_tasks.spool.spool import Spool, folder_name

VERSION = 1

GONE = "gone"
"""Name in the `hashes` of a mark that says that its node is forgotten: whoever has its name later is another."""

COLLECTED = "collected"
"""Node of the mark that is written before files are removed. It has no lease: its token is the micro-batch itself."""


class Known(NamedTuple):
    """State of a node: the micro-batch up to which a destination has confirmed, or a source was told or is
    about to be told; and how many words of a destination were taken, `resent` of them on what was sent again."""

    number: int
    words: int = 0
    resent: int = 0


def under_way(name: str) -> bool:
    """Returns whether a field of a destination's hash is about a micro-batch that is under way."""
    return name in {"ranges", "merged", "group"} or name.startswith(("divided", "shard:"))


@dataclass(frozen=True)
class Mark:
    """State of one node.

    `at`: microseconds by the Redis server's clock, before the state was read; micro-batches sealed under a later token
    are not in it. `number`: the cursor, or the micro-batch up to which the source is acked. `hashes`: name → the
    broker's hash as it was; `ack` of a source may hold an intent, from … to.
    """

    node: str
    token: int
    at: int
    number: int
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def claims(self) -> int:
        """Last micro-batch that the destination has confirmed, or that the source was told or was about to be told."""
        return max(self.number, int(self.hashes.get("ack", {}).get("to", 0)))

    @property
    def gone(self) -> bool:
        """Whether the node was forgotten: none of its marks counts."""
        return GONE in self.hashes

    @property
    def through(self) -> int:
        """Last micro-batch of which it tells something: of a destination, also one that is under way."""
        of = self.hashes.get("destination", {})
        if (group := of.get("group")) is not None:
            return max(self.claims, int(group.rpartition("-")[2]))
        return self.claims + any(value and under_way(name) for name, value in of.items())

    @property
    def known(self) -> Known:
        """Redis' knowledge of the node when it was written; without words in a mark of an older version."""
        of = self.hashes.get("destination", {})
        return Known(self.claims, int(of.get("words", 0)), int(of.get("resent", 0)))


SEALED = "sealed"
"""Field of a mark's `totals`: the micro-batch up to which they count."""


class Checkpoint:
    """Marks of one pipeline. Every method raises SpoolError naming the file."""

    def __init__(self, spool: Spool, pipeline: str) -> None:
        self._spool, self._folder = spool, f"{folder_name(pipeline)}/checkpoint"
        self._tidied: set[str] = set()

    def write(self, mark: Mark) -> None:
        """Writes a mark, durable on return, and removes the node's older ones."""
        path = self._path(mark.node, mark.token)
        self._spool.put(path, orjson.dumps({"version": VERSION, **asdict(mark)}))
        if path in self._tidied:
            return
        self._tidied.add(path)
        for node, token in self._names():
            if node == folder_name(mark.node) and token < mark.token:
                self._spool.remove(f"{self._folder}/{node}-{token}.json")

    def collecting(self, number: int) -> None:
        """Writes that files up to this micro-batch may be gone, before the first is removed, while a node is out of the
        pipeline file: its mark says that it needs them."""
        self.write(Mark(COLLECTED, number, 0, number))

    def forget(self, node: str, token: int) -> None:
        """Has none of a node's marks count any more, those that its fenced holders may still write among them; durable
        on return. `token`: of the node's lease, which the caller holds."""
        self.write(Mark(node, token, token, 0, {GONE: {}}))

    def read(self, *nodes: str) -> dict[str, Mark]:
        """Returns node → its newest mark, without nodes that are forgotten. `nodes`: only of these."""
        wanted = {folder_name(node) for node in nodes}
        return self._newest(lambda name: not nodes or name in wanted)

    def besides(self, nodes: Iterable[str]) -> dict[str, Mark]:
        """Returns the same for all nodes but these."""
        others = {folder_name(node) for node in (COLLECTED, *nodes)}
        return self._newest(lambda name: name not in others)

    def _newest(self, wanted: Callable[[str], bool]) -> dict[str, Mark]:
        newest: dict[str, int] = {}
        for name, token in self._names():
            if wanted(name):
                newest[name] = max(token, newest.get(name, 0))
        marks = (self._read(f"{self._folder}/{name}-{token}.json") for name, token in newest.items())
        return {mark.node: mark for mark in marks if mark is not None and not mark.gone}

    def _read(self, path: str) -> Mark | None:
        try:
            with self._spool.store.open(path) as file:
                data = orjson.loads(file.read())
            if data.pop("version") != VERSION:
                raise ValueError("another version wrote it")
            return Mark(**data)
        except FileNotFoundError:
            # A newer mark has replaced it since the listing, and claims at least as much.
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpoolError(
                f"{self._spool.uri(path)} is no checkpoint ({error}); restore it, or remove it: what the spool still "
                "has is then delivered again"
            ) from error

    def _path(self, node: str, token: int) -> str:
        return f"{self._folder}/{folder_name(node)}-{token}.json"

    def _names(self) -> list[tuple[str, int]]:
        out = []
        for name, is_folder in self._spool.entries(self._folder):
            node, _, token = name.removesuffix(".json").rpartition("-")
            if not is_folder and name.endswith(".json") and name[0] != "." and token.isdigit():
                out.append((node, int(token)))
        return out


def covers(mark: Mark | None, sealed: dict[int, int]) -> int:
    """Returns the last micro-batch that a mark proves confirmed or acked. `sealed`: number → token of its manifest, for
    the manifests that exist.

    A Redis that forgot its last moments seals the same number again, with other records, after the mark was written.
    """
    return 0 if mark is None else min([mark.number, *_before(mark, sealed)])


def trusted(mark: Mark, sealed: dict[int, int]) -> int:
    """Returns the last micro-batch up to which a mark's claim is valid; an intent counts whole or not at all. `sealed`:
    as in `covers`."""
    return covers(mark, sealed) if _before(mark, sealed) else mark.claims


def _before(mark: Mark, sealed: dict[int, int]) -> list[int]:
    """Returns, for each claimed micro-batch that was sealed after the mark, the number before it."""
    return [m - 1 for m, token in sealed.items() if m <= mark.claims and token > mark.at]


def outlived(mark: Mark, sealed: dict[int, int]) -> bool:
    """Returns whether a micro-batch that the mark tells of was sealed after it: the mark came when Redis had forgotten
    that micro-batch, and others had gone on without it. `sealed`: as in `covers`."""
    return any(token > mark.at for m, token in sealed.items() if m <= mark.through)


def exceeds(mark: Mark, now: Known, spool: Spool, pipeline: str) -> bool:
    """Returns whether a mark tells of more than Redis does `now`, so that Redis has forgotten that. Its claim is valid
    beyond what Redis says, or it counts more words (a redrive or a replay moves no cursor). If it is outlived, what it
    alone knows of live records comes again anyway, so that only words on what was sent again count."""
    was = mark.known
    if was.number > now.number:
        there = tokens(spool, pipeline, range(now.number + 1, was.number + 1))
        if trusted(mark, there) > now.number:
            return True
    if was.words <= now.words:
        return False
    return was.resent > now.resent or not outlived(mark, tokens(spool, pipeline))


def tokens(spool: Spool, pipeline: str, numbers: Iterable[int] | None = None) -> dict[int, int]:
    """Returns number → token of the newest sealed manifest, for all micro-batches (or `numbers`) that have one."""
    found = ((m, spool.sealed(pipeline, m)) for m in numbers or spool.micro_batches(pipeline))
    return {m: token_of(path) for m, path in found if path is not None}


def token_of(manifest: str) -> int:
    """Returns the fencing token in a manifest's path."""
    return int(manifest.rpartition("-")[2].removesuffix(".json"))
