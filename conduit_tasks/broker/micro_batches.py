"""Micro-batches: open, stage, seal; restage or undo the unsealed one; sums over all that is sealed
(docs/architecture.md, "Life of a micro-batch")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access, seconds
from conduit_tasks.broker.dead_letters import Indexed, index_entries
from conduit_tasks.broker.state import MicroBatch, Stage
from conduit_tasks.errors import ConduitError, Fenced
from conduit_tasks.metrics.histogram import Histogram, histograms
from conduit_tasks.redis_client.portions import PORTION, portions
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Slice


class MicroBatches:
    """The stream of micro-batches of one pipeline; at most one is unsealed (invariant 3)."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def open(self, slices: Mapping[str, Sequence[Slice]], config: str, expect: int, *, processors: bool = False) -> int:
        """Opens micro-batch `expect`, the one after the last, and moves the planned positions, in one step.

        Returns its number, or that of the unsealed micro-batch if there is one already. `processors`: the pipeline has
        some, they stage too. Raises PipelineStopped, and Fenced if another run opened and sealed it meanwhile (plan
        again).
        """
        some = {source: list(of) for source, of in slices.items() if of}
        if not some:
            raise ValueError("a micro-batch without slices has nothing to read")
        rest: list[str] = []
        for of in some.values():
            ends = {s.part: orjson.dumps(s.end).decode() for s in of if not s.open}
            rest += [_slices(of), str(len(ends))]
            rest += [text for pair in ends.items() for text in pair]
        kind, *_ = self._access.run(
            scripts.OPEN,
            {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(expect),
                "planned": [self._keys.planned(s) for s in some],
            },
            expect=expect,
            config=config,
            sources=list(some),
            nodes=_nodes(list(some), processors),
            rest=rest,
        )
        if kind == "taken":
            raise Fenced(f"pipeline {self._access.pipeline}: another run opened micro-batch {expect}; plan again")
        return int(kind)

    def latest_sealed(self) -> int:
        """Returns the highest sealed number; 0 before the first."""
        return self._access.numbers("sealed")[0]

    def unsealed(self) -> MicroBatch | None:
        """Returns the open micro-batch; None if there is none."""
        number = self._access.numbers("unsealed")[0]
        if not number:
            return None
        found = self.find(number)
        # It may have been sealed, even collected, between the two reads.
        return found if found is not None and found.state == "open" else None

    def get(self, m: int) -> MicroBatch:
        """Returns one micro-batch. Raises ConduitError if it was collected or never opened."""
        found = self.find(m)
        if found is None:
            raise ConduitError(
                f"pipeline {self._access.pipeline} has no micro-batch {m}: it was collected (spool.retention) or never "
                "opened"
            )
        return found

    def find(self, m: int) -> MicroBatch | None:
        """Returns one micro-batch; None if it was collected or never opened."""
        from conduit_tasks.connectors.base import Slice

        data = self._access.hash(self._keys.micro_batch(m))
        if not data:
            return None
        sources = orjson.loads(data["sources"])
        return MicroBatch(
            number=m,
            state=cast(Any, data["state"]),
            opened_at=seconds(data["opened_at"]) or 0.0,
            config=data["config"],
            nodes=tuple(orjson.loads(data["nodes"])),
            slices={s: [Slice(**item) for item in orjson.loads(data[f"slices:{s}"])] for s in sources},
            stages={k.removeprefix("stage:"): _stage(data, k) for k in data if k.startswith("stage:")},
            sealed_at=seconds(data.get("sealed_at")),
            manifest=data.get("manifest", ""),
            total=int(data.get("total", 0)),
            bytes=int(data.get("bytes", 0)),
            matched=orjson.loads(data.get("matched", "{}")),
        )

    def stage(  # noqa: PLR0917 - the names of a stage, and its result
        self,
        node: str,
        m: int,
        token: int,
        stage: Stage,
        slices: Sequence[Slice] | None = None,
        observed: Mapping[str, int] | None = None,
    ) -> list[str]:
        """Stores the stage of `node` for micro-batch m; returns the nodes that have not staged yet.

        `slices`: those of the source, with the ends that reading found if some were open. The first fenced stage of a
        node is final; `micro_batch(m).stages[node].manifest` names the one that won. Indexes are handed out here.
        `observed`: durations (`metrics.histogram`), counted if this stage wins. Raises Fenced, PipelineStopped,
        InvariantBroken.
        """
        source = Node(node).id if Node(node).kind == "sources" else ""
        body = asdict(stage)
        del body["first_index"]
        counts = [str(n) for n in stage.counts or ()]
        reached = [text for s in slices or () if s.open for text in (s.part, orjson.dumps(s.end).decode())]
        return self._access.run(
            scripts.STAGE,
            {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(m),
                "lease": self._keys.lease(node),
                "index": self._keys.index(source),
                "planned": self._keys.planned(source),
                "figures": self._keys.figures,
            },
            token=token,
            node=node,
            source=source,
            manifest=stage.manifest,
            stage=body,
            observed=dict(observed or {}),
            slices=_slices(slices) if reached and slices else "",
            count=len(counts),
            rest=[*counts, *reached],
        )

    def restage(self, sources: Sequence[str], config: str, *, processors: bool = False, manifest: str = "") -> None:
        """Drops the stages of the unsealed micro-batch, for a pipeline file that changed since it was planned.

        `sources`: those of the file now. A source that is gone leaves the micro-batch, and its planned position goes
        back; slices and indexes of the others stay. Holders of leases on its nodes are fenced. If no source stays, the
        micro-batch is sealed, empty, by `manifest`.
        """
        m = self._access.numbers("unsealed")[0]
        found = self.find(m) if m else None
        if found is None:
            return
        stay = [s for s in found.slices if s in sources]
        gone = [s for s in found.slices if s not in sources]
        rest: list[str] = []
        for source in gone:
            rest += ["", *_starts(found.slices[source])]
        for source in stay:
            # The end that reading found for an open slice is dropped with its stage.
            of = found.slices[source]
            again = [replace(s, end=None) if s.open else s for s in of]
            rest += [_slices(again) if any(s.open for s in of) else "", *_starts([s for s in of if s.open])]
        nodes = dict.fromkeys([*found.nodes, "seal"])
        destinations, registered = (
            self._access.members(self._keys.destinations),
            self._access.members(self._keys.sources),
        )
        self._access.run(
            scripts.RESTAGE,
            {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(m),
                "totals": self._keys.totals,
                "each": [
                    *map(self._keys.lease, nodes),
                    *map(self._keys.index, [*gone, *stay]),
                    *map(self._keys.planned, [*gone, *stay]),
                    *map(self._keys.destination, destinations),
                    *map(self._keys.ack, registered),
                ],
            },
            m=m,
            config=config,
            sources=stay,
            nodes=_nodes(stay, processors),
            manifest=manifest,
            gone=gone,
            leases=len(nodes),
            deliveries=len(destinations),
            rest=rest,
        )
        self._unindex(m, 0)

    def drop_unsealed(self) -> None:
        """Drops the stages of the unsealed micro-batch: it is read again from its sources (C16)."""
        m = self._access.numbers("unsealed")[0]
        found = self.find(m) if m else None
        if found is not None:
            self.restage(list(found.slices), found.config, processors="processors" in found.nodes)

    def undo_unsealed(self) -> None:
        """Ends the unsealed micro-batch empty and moves its sources' positions back to its start: the next plan takes
        the records that are there then (SEMANTICS C9). Only if it cannot be read again, otherwise `drop_unsealed`."""
        m = self._access.numbers("unsealed")[0]
        found = self.find(m) if m else None
        if found is not None:
            self.restage([], found.config)

    def seal(
        self,
        m: int,
        token: int,
        *,
        manifest: str,
        total: int,
        bytes: int,
        matched: Mapping[str, int],
        filtered: int = 0,
        nacked: int = 0,
        dead: Iterable[Indexed] = (),
    ) -> bool:
        """Seals micro-batch m, under the lease `seal`; returns False if another manifest sealed it before.

        `filtered`, `nacked`: records lost before the fan-out; `dead`: the stored dead letters of those nacked.
        Raises Fenced, PipelineStopped, and InvariantBroken if a node has not staged.
        """
        self._unindex(m, token)
        left = iter(dead)
        letters, more = list(islice(left, PORTION)), list(islice(left, PORTION))
        while more:
            keys = {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(m),
                "lease": self._keys.lease("seal"),
                "dead": self._keys.dead(""),
            }
            self._access.run(scripts.INDEX, keys, token=token, letters=index_entries(letters))
            letters, more = more, list(islice(left, PORTION))
        answer = self._access.run(
            scripts.SEAL,
            {
                "pipeline": self._keys.pipeline,
                "micro_batch": self._keys.micro_batch(m),
                "lease": self._keys.lease("seal"),
                "totals": self._keys.totals,
                "series": self._keys.series(""),
                "dead": self._keys.dead(""),
            },
            m=m,
            token=token,
            manifest=manifest,
            total=total,
            bytes=bytes,
            matched=dict(matched),
            filtered=filtered,
            nacked=nacked,
            letters=index_entries(letters),
        )
        return bool(answer[0])

    def _unindex(self, m: int, token: int) -> None:
        """Removes the indexed letters that an attempt to seal micro-batch m under another token than `token` left."""
        keys = {"micro_batch": self._keys.micro_batch(m), "dead": self._keys.dead("")}
        left = self._access.field(keys["micro_batch"], "indexing")
        if left is None or left == str(token):
            return
        found = [field for field in self._access.scanned(keys["dead"]) if field.startswith(f"0-{m}-")]
        for portion in portions(found):
            self._access.run(scripts.UNINDEX, keys, token=int(left), over=False, letters=portion)
        self._access.run(scripts.UNINDEX, keys, token=int(left), over=True, letters=[])

    def totals(self) -> dict[str, int]:
        """Returns counts over everything sealed: `read`, `filtered`, `nacked`, and `<node>/read` … of each node's
        stages."""
        return {name: int(n) for name, n in self._access.hash(self._keys.totals).items()}

    def histograms(self) -> dict[tuple[str, str], Histogram]:
        """Returns (node, what) → durations: `latency` of a destination's records, and the time of a node's stages."""
        return histograms(self._access.hash(self._keys.figures))


def _nodes(sources: Sequence[str], processors: bool) -> list[str]:
    return [*(Node.source(s) for s in sources), *(["processors"] if processors and sources else [])]


def _stage(data: Mapping[str, str], name: str) -> Stage:
    first = data.get(f"first:{name.removeprefix('stage:')}")
    return Stage(
        **orjson.loads(data[name]),
        first_index=None if first is None else tuple(int(n) for n in first.split(",") if n),
    )


def _slices(slices: Sequence[Slice]) -> str:
    # Without `asdict`: its copies of thousands of slices would take seconds.
    return orjson.dumps(list(slices)).decode()


def _starts(slices: Sequence[Slice]) -> list[str]:
    """Returns the number of parts, then part and start token (JSON) of each."""
    starts: dict[str, str] = {}
    for piece in slices:
        starts.setdefault(piece.part, orjson.dumps(piece.start).decode())
    return [str(len(starts)), *(text for pair in starts.items() for text in pair)]
