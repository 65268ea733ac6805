"""Ranges and counts that each run confirmed, kept for `spool.retention`: redelivered if its task is cleared after it
succeeded (C10), and read by assets' events and lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import ConduitError
from conduit_tasks.redis_client.portions import portions
from conduit_tasks.topology import Node


class Redeliveries:
    """Runs that delivered something, and the redelivery under way."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def begin(self, destination: str, run: str, token: int) -> int:
        """Begins a new epoch that redelivers the ranges `run` confirmed (its task succeeded and was cleared).

        Continues the run's redelivery under way, if it did not finish. Returns the epoch; `ranges` returns the
        ranges left. Raises ConduitError if the run's ranges are forgotten, or another run's redelivery is under way.
        """
        keys = {
            "pipeline": self._keys.pipeline,
            "destination": self._keys.destination(destination),
            "lease": self._keys.lease(Node.destination(destination)),
            "redo": self._keys.redo(destination),
        }
        found, at, epoch = self.ranges(destination, run), 0, 0
        for some in portions(found):
            at += len(some)
            flat = [text for m, ranges in some for text in (str(m), str(ranges))]
            kind, *rest = self._access.run(scripts.REOPEN, keys, token=token, id=run, over=at == len(found), rest=flat)
            if kind == "busy":
                raise ConduitError(
                    f"destination {destination} still redelivers what run {rest[0]} had confirmed: let that finish "
                    "first (if its task failed, clear it again); left alone, it is given up after spool.retention"
                )
            epoch = int(kind)
        return epoch

    def lapse(self, destination: str, after: float) -> tuple[str, int] | None:
        """Gives up a redelivery that has made no progress for `after` seconds.

        Returns its run and the number of micro-batches that were not redelivered completely; None if there is no such
        redelivery.
        """
        keys = {"redo": self._keys.redo(destination), "lease": self._keys.lease(Node.destination(destination))}
        found = self._access.run(scripts.LAPSE, keys, after=int(after * 1e6))
        return (str(found[0]), int(found[1])) if found else None

    def ranges(self, destination: str, run: str, epoch: int | None = None) -> list[tuple[int, RangeSet]]:
        """Returns (micro-batch, ranges) that a redelivery of `run` sends: those left of the one under way, else all.

        `epoch`: of `begin`; then only the ranges left of that redelivery, [] once it is finished. Raises ConduitError
        if the ranges are forgotten (past `spool.retention`), naming what to do instead.
        """
        under_way = self._access.scanned(self._keys.redo(destination))
        if epoch is not None and under_way.get("epoch") != str(epoch):
            return []
        # One that was cut off while it began has only a part of them.
        mine = under_way.get("run") == run and "filling" not in under_way
        ranges = under_way if mine else self._access.scanned(self._keys.run(destination, run))
        out = sorted((int(m), RangeSet.parse(text)) for m, text in ranges.items() if m.isdigit())
        here = self._access.read(*(("EXISTS", self._keys.micro_batch(m)) for m, _ in out))
        if not out or not all(here):
            raise self._forgotten(destination, run)
        return out

    def finish_run(self, destination: str, run: str) -> dict[str, int]:
        """Notes that a run's task succeeded after it delivered something; returns run → end (ms since the epoch) of all
        such runs that are known."""
        key = self._keys.runs(destination)
        self._access.run(scripts.FINISH, {"runs": key}, run=run)
        return {name: int(at) for name, at in self._access.hash(key).items()}

    def run_finished(self, destination: str, run: str) -> bool:
        """Returns whether `finish_run` was called for this run and it is not forgotten."""
        earlier = self._keys.finished(destination, run)
        return any(self._access.read(("HEXISTS", self._keys.runs(destination), run), ("EXISTS", earlier)))

    def confirmed_by(self, destination: str, runs: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns run → micro-batch → ranges that it confirmed; no ranges if they are past `spool.retention`."""
        found = self._access.read(*(("HGETALL", self._keys.run(destination, run)) for run in runs))
        return {run: {m: ranges for m, ranges in of.items() if m.isdigit()} for run, of in zip(runs, map(dict, found))}

    def delivered_by(self, destination: str, run: str) -> tuple[dict[str, int], list[int]]:
        """Returns what a run has counted at a destination (as the counters of `deliveries.get`), and the micro-batches
        in which it confirmed something, sorted; both empty if that is past `spool.retention`."""
        found = self._access.hash(self._keys.run(destination, run))
        counts = {name: int(n) for name, n in found.items() if not name.isdigit()}
        return counts, sorted(int(m) for m in found if m.isdigit())

    def forget_runs(self, destination: str, runs: Sequence[str]) -> None:
        """Removes these runs from the broker, as they are kept elsewhere now."""
        self._access.read(
            ("UNLINK", *(self._keys.run(destination, run) for run in runs)),
            ("HDEL", self._keys.runs(destination), *runs),
        )

    def remember_run(self, destination: str, run: str, ranges: Mapping[str, str], retention: float) -> None:
        """Puts back a run that was forgotten, with its ranges (micro-batch → ranges)."""
        keys = {"runs": self._keys.runs(destination), "run": self._keys.run(destination, run)}
        for some in portions(list(ranges.items())) if ranges else [()]:
            flat = [text for pair in some for text in pair]
            self._access.run(scripts.REMEMBER, keys, id=run, retention=int(retention * 1000), rest=flat)

    def _forgotten(self, destination: str, run: str) -> ConduitError:
        return ConduitError(
            f"what run {run} delivered to {destination} is past spool.retention and cannot be sent again: "
            f"replay the interval instead (`conduit replay {self._access.pipeline}`)"
        )
