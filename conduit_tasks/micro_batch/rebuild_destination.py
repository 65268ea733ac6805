"""A destination's part of a rebuild (SEMANTICS X7): what is known of it, by its mark or by Redis itself, and the fields
to write.

Redis may know more of a destination than its mark, although it has forgotten something else: then the mark would take
back what was confirmed since. Live records are delivered again after that. What a redrive or a replay sent is not,
because Redis also knows that those letters are closed, and that portion is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from conduit_tasks.spool.checkpoint import Mark, covers, outlived, token_of, under_way
from conduit_tasks.topology import Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.spool.manifest import SealedManifest

Fields = dict[str, str]

_NOT_RESTORED = ("status", "error", "error_at", "forced")
"""Fields that are not restored: the destination starts running."""
_FRONT = frozenset({"ranges", "divided", "merged", *(f"shard:{n}" for n in range(64))})
"""Fields about the micro-batch behind the cursor, for others of its group have names of their own."""
LINEAGE = "lineage"
"""Field of a destination: microseconds when its state was last rebuilt. A copy of Redis from before that may count more
words than a mark from after it, and means others."""


def newest(pipeline: Pipeline, broker: Broker, marks: Mapping[str, Mark], sealed: dict[int, int]) -> dict[str, Mark]:
    """Returns the marks, with one made of what Redis says for each destination of which Redis knows more. `sealed`: as
    in `checkpoint.covers`."""
    found, at = dict(marks), _sealed_at(broker)
    for d in pipeline.destinations:
        state, window = broker.access.destination(d.id)
        said = Mark(d.node, 0, at, _number(state, "cursor"), {"destination": state, "window": window})
        if _knows_more(said, marks.get(d.node), sealed):
            found[d.node] = said
    return found


def _knows_more(said: Mark, mark: Mark | None, sealed: dict[int, int]) -> bool:
    """Returns whether what Redis says of a destination goes beyond its mark: by more words; or if the mark is outlived,
    and Redis knows what is left of it."""
    if mark is None:
        return said.known.words > 0
    if _number(said.hashes["destination"], LINEAGE) < _number(mark.hashes["destination"], LINEAGE):
        return False
    if said.known.words > mark.known.words:
        return True
    left = covers(mark, sealed)
    return outlived(mark, sealed) and said.number >= left and said.known.resent >= mark.known.resent


def words(destinations: Iterable[str], broker: Broker) -> dict[str, int]:
    """Returns, per destination, the number of words that Redis has taken: the same as long as nothing is confirmed."""
    ids = list(destinations)
    counts = broker.access.read(*(("HGET", broker.keys.destination(id), "words") for id in ids))
    return {id: int(count or 0) for id, count in zip(ids, counts, strict=True)}


def fields(mark: Mark | None, cursor: int, manifests: Mapping[int, SealedManifest], at: int) -> Fields:
    """Returns the fields to write. `cursor`: the last micro-batch that is proved confirmed; `at`: microseconds now."""
    out = {"status": "running", "epoch": "0"}
    if mark is not None:
        was = mark.hashes["destination"]
        out |= {name: value for name, value in was.items() if name not in _NOT_RESTORED}
        following = manifests.get(cursor + 1)
        if cursor > mark.number:
            # What was collected while it was away is not known any more by where it joined.
            out.pop("joined", None)
        # Ranges are valid only for the micro-batch that they were confirmed in.
        if cursor != mark.number or following is None or following.token > mark.at:
            out = {name: value for name, value in out.items() if not under_way(name)}
        elif any(m not in manifests or manifests[m].token > mark.at for m in _grouped(out, cursor)):
            out = {name: value for name, value in out.items() if not under_way(name) or name in _FRONT}
    return {**out, "cursor": str(cursor), LINEAGE: str(at)}


def _sealed_at(broker: Broker) -> int:
    """Returns the token under which the last micro-batch that Redis knows of was sealed: others have a later one."""
    last = broker.access.numbers("sealed")[0]
    manifest = broker.access.field(broker.keys.micro_batch(last), "manifest")
    return token_of(manifest) if manifest else _number(broker.access.hash(broker.keys.lease("seal")), "token")


def _grouped(state: Fields, cursor: int) -> range:
    """Returns the micro-batches of a destination's group that are not behind its cursor yet."""
    return range(cursor + 2, int(state.get("group", "-0").rpartition("-")[2]) + 1)


def _number(state: Mapping[str, str], name: str) -> int:
    return int(state.get(name) or 0)
