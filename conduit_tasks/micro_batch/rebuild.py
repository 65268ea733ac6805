"""Rebuilding a pipeline's state in Redis from its spool (SEMANTICS X7): from the manifests of sealed micro-batches, and
the marks beside them, which hold the cursor of each destination and the ack of each source.

Nothing is lost: records that are not proved delivered, by a mark or by Redis itself, are delivered again, in order;
records that were not sealed are read again from their source, after the sealed ones. The state goes back by a moment at
most, as after a crash.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.lifecycle import SCHEMA
from conduit_tasks.broker.versions import literal
from conduit_tasks.connectors.base import Slice
from conduit_tasks.dead_letters.restored import lost_exceptions
from conduit_tasks.errors import ConfigError, Fenced, SpoolError
from conduit_tasks.micro_batch import rebuild_destination
from conduit_tasks.redis_client.connection import reaching
from conduit_tasks.redis_client.portions import PORTION, portions
from conduit_tasks.spool.checkpoint import COLLECTED, SEALED, Checkpoint, Mark, covers, tokens, trusted
from conduit_tasks.spool.manifest import SealedManifest
from conduit_tasks.spool.names import known_as
from conduit_tasks.spool.spool import Spool
from conduit_tasks.topology import Node, Pipeline

Fields = dict[str, str]

NODE = "rebuild"
"""Node whose lease a run holds while it rebuilds the state by itself."""

_LARGE = ("micro-batch:", "planned:", "acked:", "intent:", "index:", "dead:", "parked:")
"""Keys that are written in portions: there may be many of them, or many fields in one."""
_ADDED = ("dead:", "parked:")
"""Those of `_LARGE` whose fields are added to the present ones; the write may be cut off in the middle."""


@dataclass
class Rebuilt:
    """The state to write. `hashes`: key → fields. `delivered`, `acked`: progress of each node, for people."""

    sealed: int = 0
    collected: int = 0
    hashes: dict[str, Fields] = field(default_factory=dict)
    delivered: dict[str, str] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    records: int = 0
    """Records of sealed micro-batches in the spool."""
    bytes: int = 0
    """Their size in the spool."""
    dropped: list[int] = field(default_factory=list)
    """Micro-batches without a sealed manifest: they are read again from their sources."""
    words: dict[str, int] = field(default_factory=dict)
    """Per destination, how many words Redis had taken when this was put together."""


def from_spool(pipeline: Pipeline, spool: Spool, broker: Broker) -> Rebuilt:
    """Returns the state that the spool proves, and what Redis knows beyond that of a destination.

    Raises SpoolError if a manifest or a file that is still needed is missing or changed.
    """
    words = rebuild_destination.words([d.id for d in pipeline.destinations], broker)
    before, there = Checkpoint(spool, pipeline.id).read(), tokens(spool, pipeline.id)
    marks = rebuild_destination.newest(pipeline, broker, before, there)
    now = int(broker.access.now() * 1e6)
    nodes = [*(d.node for d in pipeline.destinations), *(Node.ack(s.id) for s in pipeline.sources)]
    reached = {node: covers(marks[node], there) for node in nodes if node in marks}
    sealed = max([*there, *reached.values()], default=0)
    # A node without a mark gets everything that the spool holds. The mark of one that was out of the file is older than
    # what was collected meanwhile: like `register`, this has it go on behind that.
    gone = marks[COLLECTED].number if COLLECTED in marks else 0
    needed = max(gone, min(reached.values(), default=min(there, default=1) - 1))
    manifests: dict[int, SealedManifest] = {}
    collected = 0
    for m in range(sealed, 0, -1):
        found = _intact(pipeline, spool, m, m > needed)
        if found is None:
            # Collected, or being collected: collection goes in order, so everything below is gone too.
            collected = m
            break
        manifests[m] = found
    out = Rebuilt(sealed, collected, words=words)
    out.records = sum(manifest.total for manifest in manifests.values())
    out.bytes = sum(file.bytes for manifest in manifests.values() for file in manifest.files)
    out.dropped = [m for m in spool.micro_batches(pipeline.id) if m > sealed]
    keys = broker.keys
    for m in sorted(manifests):
        out.hashes[keys.micro_batch(m)] = _micro_batch(pipeline, spool, manifests[m])
    for d in pipeline.destinations:
        cursor = max(reached.get(d.node, 0), collected)
        fields = rebuild_destination.fields(marks.get(d.node), cursor, manifests, now)
        out.hashes[keys.destination(d.id)] = fields
        out.delivered[d.id] = f"{cursor}" + (f" and {fields['ranges']}" if fields.get("ranges") else "")
        if (mark := marks.get(d.node)) is not None:
            window = {k: v for k, v in mark.hashes.get("window", {}).items() if k != "tripped"}
            out.hashes[keys.window(d.id)] = window
    for s in pipeline.sources:
        mark = marks.get(Node.ack(s.id))
        out.acked[s.id] = max(reached.get(Node.ack(s.id), 0), collected)
        ack, intent = _intent(mark, out.acked[s.id], there)
        out.hashes |= {
            keys.ack(s.id): {"m": str(out.acked[s.id]), **ack},
            keys.intent(s.id): intent,
            keys.acked(s.id): mark.hashes.get("acked", {}) if mark else {},
            keys.planned(s.id): _planned(mark, s.id, manifests),
            keys.index(s.id): _index(mark, s.id, manifests),
        }
    out.hashes |= lost_exceptions(
        pipeline, broker, {name: out.hashes[keys.destination(name)] for name in out.delivered}
    )
    out.hashes[keys.totals] = totals = _totals(marks, manifests)
    _sum_up(out, broker, manifests, totals)
    return out


def holds_state(broker: Broker) -> bool:
    """Returns whether Redis knows of any micro-batch of the pipeline."""
    return broker.access.numbers("last")[0] > 0


def apply(broker: Broker, rebuilt: Rebuilt, *, replace: bool, again: Callable[[], Rebuilt] | None = None) -> None:
    """Writes the state, in portions while the pipeline stands still, and then the numbers in one step. If it is cut
    off, the next call does it again. Raises ConfigError if there is state and `replace` is False, and Fenced.

    `again`: puts the state together once more if somebody had confirmed something before their lease was taken; None:
    nobody can have.
    """
    keys, nonce = broker.keys, uuid.uuid4().hex
    _stand_still(broker, nonce, (), replace=replace)
    with reaching(broker.redis):
        present = sorted(broker.redis.scan_iter(match=literal(keys.prefix) + "*", count=1000))
    # All but the lease under which a run rebuilds (`micro_batch.forgotten`): the other runs wait for that one.
    for taken in portions([key for key in present if key.startswith(keys.lease("")) and key != keys.lease(NODE)]):
        _stand_still(broker, nonce, taken, replace=replace)
    if again is not None and rebuild_destination.words(rebuilt.words, broker) != rebuilt.words:
        rebuilt = again()
    stale = tuple(
        keys.prefix + name for name in ("micro-batch:", "planned:", "acked:", "ack:", "intent:", "index:", "redo:")
    )
    large = {key: fields for key, fields in rebuilt.hashes.items() if key.removeprefix(keys.prefix).startswith(_LARGE)}
    replaced = [key for key in large if not key.removeprefix(keys.prefix).startswith(_ADDED)]
    for some in portions([*(key for key in present if key.startswith(stale)), *replaced]):
        _write(broker, nonce, some, [])
    some, texts = list[str](), list[str]()
    for key, fields in large.items():
        for pairs in portions(list(fields.items())):
            some.append(key)
            texts += [str(2 * len(pairs)), *(text for pair in pairs for text in pair)]
            if len(texts) >= 2 * PORTION:
                _write(broker, nonce, some, texts, remove=0)
                some, texts = [], []
    _write(broker, nonce, some, texts, remove=0)
    small = {key: fields for key, fields in rebuilt.hashes.items() if key not in large}
    answer = broker.access.run(
        scripts.REBUILD,
        {"schema": keys.schema, "pipeline": keys.pipeline, "each": list(small)},
        nonce=nonce,
        version=SCHEMA,
        sealed=rebuilt.sealed,
        collected=rebuilt.collected,
        held=rebuilt.bytes,
        rest=[
            text for f in small.values() for text in (str(2 * len(f)), *(text for pair in f.items() for text in pair))
        ],
    )
    _mine(broker, answer)


def _stand_still(broker: Broker, nonce: str, leases: Sequence[str], *, replace: bool) -> None:
    """Has the pipeline stand still, and takes these leases from whoever holds them."""
    keys = {"pipeline": broker.keys.pipeline, "leases": leases}
    if broker.access.run(scripts.REBUILD_BEGIN, keys, nonce=nonce, replace=replace):
        raise has_state(broker.pipeline)


def _write(broker: Broker, nonce: str, each: Sequence[str], rest: list[str], *, remove: int | None = None) -> None:
    keys = {"pipeline": broker.keys.pipeline, "each": each}
    given = len(each) if remove is None else remove
    _mine(broker, broker.access.run(scripts.REBUILD_WRITE, keys, nonce=nonce, remove=given, rest=rest))


def _mine(broker: Broker, answer: list[Any]) -> None:
    if not answer[0]:
        raise Fenced(f"pipeline {broker.pipeline} is rebuilt by somebody else meanwhile; this one stops")


def has_state(pipeline: str) -> ConfigError:
    """Returns the error that refuses to rebuild over present state."""
    return ConfigError(
        f"Redis holds state of pipeline {pipeline}; rebuilding would set it back to what the spool proves. Stop the "
        "pipeline's runs and add --replace if that is wanted"
    )


def _intact(pipeline: Pipeline, spool: Spool, m: int, needed: bool) -> SealedManifest | None:
    """Returns the sealed manifest of micro-batch m if all its files are there, and None if some are not and it is not
    `needed`. Raises SpoolError if it is needed."""
    path = spool.sealed(pipeline.id, m)
    if path is None:
        if needed:
            raise SpoolError(
                f"{spool.uri(spool.folder(pipeline.id, m))} has no sealed manifest, and not every destination has "
                f"confirmed micro-batch {m}: restore it from a backup. Without one, remove "
                f"{spool.uri(spool.folder(pipeline.id, m).rpartition('/')[0])} and begin again: sources are read from "
                "their beginning"
            )
        return None
    try:
        manifest = spool.read_sealed(path)
        for file in manifest.files:
            spool.check(file)
    except SpoolError as error:
        if needed:
            raise SpoolError(f"{error}. Not every destination has confirmed micro-batch {m}") from error
        return None
    return manifest


def _micro_batch(pipeline: Pipeline, spool: Spool, manifest: SealedManifest) -> Fields:
    slices: dict[str, list[dict[str, Any]]] = {}
    for s in manifest.slices:
        slices.setdefault(s.source, []).append(asdict(Slice(s.part, s.partition, s.start, s.end, s.records)))
    nodes = [*(Node.source(source) for source in slices), *(["processors"] if pipeline.processors else [])]
    at = str(int(manifest.sealed_at * 1e6))
    return {
        "state": "sealed",
        "opened_at": at,
        "sealed_at": at,
        "config": manifest.config,
        "sources": _json(list(slices)),
        "nodes": _json(nodes),
        "manifest": spool.sealed(manifest.pipeline, manifest.micro_batch) or "",
        "total": str(manifest.total),
        "bytes": str(sum(file.bytes for file in manifest.files)),
        "matched": _json(_matched(pipeline, spool, manifest)),
        **{f"slices:{source}": _json(of) for source, of in slices.items()},
    }


def _sum_up(out: Rebuilt, broker: Broker, manifests: dict[int, SealedManifest], totals: Fields) -> None:
    """Notes in each micro-batch, as `seal` does, what was sealed up to it."""
    records, size = int(totals.get("read", 0)), int(totals.get("bytes", 0))
    for m in sorted(manifests, reverse=True):
        fields = out.hashes[broker.keys.micro_batch(m)]
        fields |= {"upto": str(records), "upto_bytes": str(size)}
        records, size = records - int(fields["total"]), size - int(fields["bytes"])


def _matched(pipeline: Pipeline, spool: Spool, manifest: SealedManifest) -> dict[str, int]:
    """Returns the matched counts under the present ids: a destination may have been renamed since."""
    ids = {known_as(spool, pipeline.id, d.id, manifest.matched): d.id for d in pipeline.destinations}
    return {ids.get(id, id): count for id, count in manifest.matched.items()}


def _intent(mark: Mark | None, acked: int, there: dict[int, int]) -> tuple[Fields, Fields]:
    """Returns the ack's fields and the position that the source was about to be told: it is told again (C12)."""
    if mark is None or not acked < mark.claims == trusted(mark, there):
        return {}, {}
    return {"from": str(acked + 1), "to": str(mark.claims)}, mark.hashes["intent"]


def _planned(mark: Mark | None, source: str, manifests: dict[int, SealedManifest]) -> Fields:
    """Returns part → token of the planned position: the acked one, moved on by the sealed micro-batches, in order."""
    planned = dict(mark.hashes.get("acked", {})) if mark else {}
    for m in sorted(manifests):
        for part, end in manifests[m].positions.get(source, {}).items():
            planned[part] = _json(end)
    return planned


def _index(mark: Mark | None, source: str, manifests: dict[int, SealedManifest]) -> Fields:
    """Returns partition → next index."""
    index = {name: int(n) for name, n in (mark.hashes.get("index", {}) if mark else {}).items()}
    for m in sorted(manifests):
        for s in manifests[m].slices:
            if s.source == source and s.first_index is not None:
                index[s.partition] = max(index.get(s.partition, 0), s.first_index + s.records)
    return {name: str(n) for name, n in index.items()}


def _totals(marks: dict[str, Mark], manifests: dict[int, SealedManifest]) -> Fields:
    """Returns the totals of the newest mark plus those of the manifests sealed since; these count filtered and nacked
    records of all nodes together."""
    known = [mark.hashes["totals"] for mark in marks.values() if "totals" in mark.hashes]
    counts = Counter({name: int(n) for name, n in max(known, key=lambda t: int(t[SEALED]), default={}).items()})
    counted = counts.pop(SEALED, 0)
    for manifest in (manifest for m, manifest in manifests.items() if m > counted):
        counts += Counter(read=manifest.total, filtered=manifest.filtered, nacked=manifest.nacked)
        counts["bytes"] += sum(file.bytes for file in manifest.files)
        for s in manifest.slices:
            counts[f"{Node.source(s.source)}/read"] += s.records
    return {name: str(n) for name, n in counts.items()}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
