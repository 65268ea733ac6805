"""Micro-batches: open, stage, seal (docs/architecture.md, "Life of a micro-batch")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.base import PORTION, BrokerBase, portions, seconds
from conduit_tasks.broker.dead_index import Indexed, index_entries
from conduit_tasks.broker.state import Backlog, MicroBatch, Stage
from conduit_tasks.errors import ConduitError, Fenced, NotStopped
from conduit_tasks.metrics.histogram import Histogram, histograms
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Position, Slice


class MicroBatches(BrokerBase):
    """The stream of micro-batches of one pipeline; at most one is unsealed (invariant 3)."""

    def position(self, source: str) -> Position:
        """Returns the position up to which a source is planned: part → token."""
        return _tokens(self.scanned(self.keys.planned(source)))

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
        kind, *_ = self.run(
            scripts.OPEN,
            {
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(expect),
                "planned": [self.keys.planned(s) for s in some],
            },
            expect=expect,
            config=config,
            sources=list(some),
            nodes=_nodes(list(some), processors),
            rest=rest,
        )
        if kind == "taken":
            raise Fenced(f"pipeline {self.pipeline}: another run opened micro-batch {expect}; plan again")
        return int(kind)

    def place(self, source: str, before: Position, after: Position) -> None:
        """Moves the planned position of a source from `before` to `after`: records in between are read again, or never.

        Only while the pipeline is stopped or degraded and everything sealed is acked. Parts that are missing in `after`
        are removed. Raises NotStopped, and Fenced if the position is not `before` (nor `after`) any more.
        """
        parts = [part for part in {**before, **after} if before.get(part) != after.get(part)]
        if len(parts) > PORTION:
            raise ConduitError(f"{len(parts):,} parts are more than can be set at once; name at most {PORTION:,}")
        rest = [text for part in parts for text in (part, _text(before, part), _text(after, part))]
        keys = {
            "pipeline": self.keys.pipeline,
            "ack": self.keys.ack(source),
            "planned": self.keys.planned(source),
        }
        said = self.run(scripts.PLACE, keys, rest=rest)
        match said:
            case ["running", status]:
                raise NotStopped(
                    f"pipeline {self.pipeline} is {status or 'not initialised'}; positions are set while it stands "
                    f"still: `conduit stop {self.pipeline}`, with --force where it cannot end"
                )
            case ["busy", sealed, acked]:
                raise NotStopped(
                    f"pipeline {self.pipeline} has something in flight: source {source} is acked up to micro-batch "
                    f"{acked} of {sealed}. Let that be delivered first: `conduit start {self.pipeline}`, `conduit stop "
                    f"{self.pipeline}` without --force, and then this again"
                )
            case ["moved", part]:
                raise Fenced(f"source {source}: the position of {part} was moved meanwhile; look again")

    def latest_sealed(self) -> int:
        """Returns the highest sealed number; 0 before the first."""
        return self.numbers("sealed")[0]

    def unsealed(self) -> MicroBatch | None:
        """Returns the open micro-batch; None if there is none."""
        number = self.numbers("unsealed")[0]
        if not number:
            return None
        found = self.find_micro_batch(number)
        # It may have been sealed, even collected, between the two reads.
        return found if found is not None and found.state == "open" else None

    def micro_batch(self, m: int) -> MicroBatch:
        """Returns one micro-batch. Raises ConduitError if it was collected or never opened."""
        found = self.find_micro_batch(m)
        if found is None:
            raise ConduitError(
                f"pipeline {self.pipeline} has no micro-batch {m}: it was collected (spool.retention) or never opened"
            )
        return found

    def find_micro_batch(self, m: int) -> MicroBatch | None:
        """Returns one micro-batch; None if it was collected or never opened."""
        from conduit_tasks.connectors.base import Slice

        data = self.hash(self.keys.micro_batch(m))
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
        return self.run(
            scripts.STAGE,
            {
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(m),
                "lease": self.keys.lease(node),
                "index": self.keys.index(source),
                "planned": self.keys.planned(source),
                "figures": self.keys.figures,
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
        m = self.numbers("unsealed")[0]
        found = self.find_micro_batch(m) if m else None
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
        destinations, registered = self.members(self.keys.destinations), self.members(self.keys.sources)
        self.run(
            scripts.RESTAGE,
            {
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(m),
                "each": [
                    *map(self.keys.lease, nodes),
                    *map(self.keys.index, [*gone, *stay]),
                    *map(self.keys.planned, [*gone, *stay]),
                    *map(self.keys.destination, destinations),
                    *map(self.keys.ack, registered),
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
        m = self.numbers("unsealed")[0]
        found = self.find_micro_batch(m) if m else None
        if found is not None:
            self.restage(list(found.slices), found.config, processors="processors" in found.nodes)

    def undo_unsealed(self) -> None:
        """Ends the unsealed micro-batch empty and moves its sources' positions back to its start: the next plan takes
        the records that are there then (SEMANTICS C9). Only if it cannot be read again, otherwise `drop_unsealed`."""
        m = self.numbers("unsealed")[0]
        found = self.find_micro_batch(m) if m else None
        if found is not None:
            self.restage([], found.config)

    def before_unsealed(self, source: str) -> Position:
        """Returns a source's planned position without the unsealed micro-batch, to which `undo_unsealed` moves it
        back."""
        unsealed = self.unsealed()
        of = unsealed.slices.get(source, []) if unsealed is not None else []
        return self.position(source) | {s.part: s.start for s in reversed(of)}

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
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(m),
                "lease": self.keys.lease("seal"),
                "dead": self.keys.dead(""),
            }
            self.run(scripts.INDEX, keys, token=token, letters=index_entries(letters))
            letters, more = more, list(islice(left, PORTION))
        answer = self.run(
            scripts.SEAL,
            {
                "pipeline": self.keys.pipeline,
                "micro_batch": self.keys.micro_batch(m),
                "lease": self.keys.lease("seal"),
                "totals": self.keys.totals,
                "dead": self.keys.dead(""),
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
        keys = {"micro_batch": self.keys.micro_batch(m), "dead": self.keys.dead("")}
        left = self.field(keys["micro_batch"], "indexing")
        if left is None or left == str(token):
            return
        found = [field for field in self.scanned(keys["dead"]) if field.startswith(f"0-{m}-")]
        for portion in portions(found):
            self.run(scripts.UNINDEX, keys, token=int(left), over=False, letters=portion)
        self.run(scripts.UNINDEX, keys, token=int(left), over=True, letters=[])

    def totals(self) -> dict[str, int]:
        """Returns counts over everything sealed: `read`, `filtered`, `nacked`, and `<node>/read` … of each node's
        stages."""
        return {name: int(n) for name, n in self.hash(self.keys.totals).items()}

    def histograms(self) -> dict[tuple[str, str], Histogram]:
        """Returns (node, what) → durations: `latency` of a destination's records, and the time of a node's stages."""
        return histograms(self.hash(self.keys.figures))

    def backlog(self, destinations: Sequence[str]) -> Backlog:
        """Returns the backlog: everything sealed beyond the lowest cursor of these destinations (C13)."""
        sealed, *cursors = self.cursors(destinations)
        pending = range(min(cursors, default=sealed) + 1, sealed + 1)
        *found, (secs, _) = self.read(
            *(("HMGET", self.keys.micro_batch(m), "total", "bytes", "sealed_at") for m in pending), ("TIME",)
        )
        oldest = [int(at) / 1e6 for _, _, at in found if at]
        if oldest and oldest[0] > int(secs) + 1:
            # The server's clock went back: until it has caught up, they would have no age.
            self.not_ahead(*((self.keys.micro_batch(m), "sealed_at", "") for m in pending))
            oldest[0] = float(secs)
        return Backlog(
            records=sum(int(total or 0) for total, _, _ in found),
            bytes=sum(int(size or 0) for _, size, _ in found),
            oldest_sealed_at=oldest[0] if oldest else None,
            micro_batches=len(pending),
        )

    def cursors(self, destinations: Sequence[str]) -> list[int]:
        """Returns the last sealed number, then the cursor of each destination (read before it, so never ahead)."""
        found = self.read(
            *(("HGET", self.keys.destination(d), "cursor") for d in destinations),
            ("HGET", self.keys.pipeline, "sealed"),
        )
        return [int(found[-1] or 0), *(int(n or 0) for n in found[:-1])]


def _nodes(sources: Sequence[str], processors: bool) -> list[str]:
    return [*(Node.source(s) for s in sources), *(["processors"] if processors and sources else [])]


def _stage(data: Mapping[str, str], name: str) -> Stage:
    first = data.get(f"first:{name.removeprefix('stage:')}")
    return Stage(
        **orjson.loads(data[name]),
        first_index=None if first is None else tuple(int(n) for n in first.split(",") if n),
    )


def _text(position: Position, part: str) -> str:
    return orjson.dumps(position[part]).decode() if part in position else ""


def _tokens(texts: Mapping[str, str]) -> Position:
    return {part: orjson.loads(token) for part, token in texts.items()}


def _slices(slices: Sequence[Slice]) -> str:
    # Without `asdict`: its copies of thousands of slices would take seconds.
    return orjson.dumps(list(slices)).decode()


def _starts(slices: Sequence[Slice]) -> list[str]:
    """Returns the number of parts, then part and start token (JSON) of each."""
    starts: dict[str, str] = {}
    for piece in slices:
        starts.setdefault(piece.part, orjson.dumps(piece.start).decode())
    return [str(len(starts)), *(text for pair in starts.items() for text in pair)]
