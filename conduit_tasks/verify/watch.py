"""Checks of invariants while a history goes on, beside the calls that could break them: plans, stages, votes, confirms,
acks, removals."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.collection import Collection
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.broker.replay import Replays
from conduit_tasks.dead_letters.parking import PARKED
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, UNSENT
from conduit_tasks.topology import Node
from conduit_tasks.verify.guards import Guards, Hook
from conduit_tasks.verify.outside import Event, Outside
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario import LOST, Scenario
from conduit_tasks.verify.scenario_file import PIPELINE
from conduit_tasks.verify.tasks import gives_way
from conduit_tasks.verify.told import Told
from conduit_tasks.verify.world import World


class Watch:
    """Checks, while a history goes on, what is acked, opened, confirmed and removed (invariants 1, 2, 6, 7, 8)."""

    def __init__(self, world: World, scenario: Scenario, outside: Outside, found: Found, redis: Any, raw: Any) -> None:  # noqa: PLR0917
        self.world, self.scenario, self.outside, self.found, self.redis = world, scenario, outside, found, redis
        self.acked: dict[str, list[int]] = {s: [] for s in scenario.sources}
        self.told: dict[str, list[Any]] = defaultdict(list)
        if outside.queues is not None:
            outside.queues.on_delete = self._deleting
        self.guards = Guards(scenario.seed, found, raw, lambda: world.redis_full)
        self._looked = 0
        self._index: dict[tuple[str, str], int] = {}
        self._missed = False
        self._voted: dict[tuple[str, int], set[tuple[int, int, int]]] = defaultdict(set)
        self._merged: dict[tuple[str, int], int] = defaultdict(int)
        """Destination, micro-batch → how often one task took over from several: records are numbered again."""
        self._stored: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._passed: set[tuple[str, int]] = set()
        self._given: dict[tuple[str, int], RangeSet] = defaultdict(lambda: RangeSet(()))
        self._told = Told(redis, found, self._by_one)
        self._unstaged: dict[int, int] = {}
        """Lease token → the micro-batch of which its node had not staged anything when the lease was given."""
        self._attempts: dict[str, int] = {}
        self._puts = 0

    @contextmanager
    def looking(self) -> Iterator[None]:
        from conduit_tasks.broker.shards import Shards
        from conduit_tasks.connectors.file.connector import FileSource
        from conduit_tasks.connectors.file.folder import FileFolder
        from conduit_tasks.connectors.sqs.connector import SqsSource
        from conduit_tasks.dead_letters.store import DeadLetterStore
        from conduit_tasks.micro_batch.deliver import Drain
        from conduit_tasks.spool.spool import Spool

        with ExitStack() as stack:
            hooks: list[Hook] = [
                (FileSource, "ack", self._acking, None),
                (SqsSource, "ack", self._settling, None),
                (Acks, "commit", self._committing, None),
                (MicroBatches, "open", None, self._opened),
                (Leases, "acquire", None, self._acquired),
                (Leases, "attempt", None, self._attempted),
                (MicroBatches, "stage", self._staging, None),
                (MicroBatches, "seal", None, self._sealed),
                # The process that sealed it may have died before the check.
                (Collection, "begin", self._sealed, None),
                (Deliveries, "vote", self._voting, None),
                (DeadLetterStore, "store", self._storing, None),
                (Deliveries, "confirm", self._confirming, self._confirmed),
                (Redrives, "settle", self._settled_again, None),
                (Replays, "confirm", self._settled_again, None),
                (Redrives, "dispatch", self._dispatching, None),
                (Drain, "until_caught_up", None, self._drained),
                (FileFolder, "put", self._putting, None),
                (Shards, "merge", self._merging, None),
                (Shards, "confirm", self._told.telling, None),
                (Shards, "whole", None, self._told.moved),
                (Spool, "collect", self._collecting, None),
                *self.guards.hooks(),
            ]
            for owner, name, before, after in hooks:
                stack.enter_context(patch.object(owner, name, self._around(getattr(owner, name), before, after)))
            yield

    def _around(
        self, original: Any, before: Callable[..., None] | None, after: Callable[..., None] | None
    ) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if self.world.actor is None:
                return original(*args, **options)
            # Iterators become lists: a hook must not use up what the call itself reads.
            options = {name: list(each) if isinstance(each, Iterator) else each for name, each in options.items()}
            if before is not None:
                with self.world.watching():
                    before(*args, **options)
            forgotten = self.world.forgotten
            answer = original(*args, **options)
            # If Redis forgot in that moment, the call may have had no effect.
            if after is not None and forgotten == self.world.forgotten:
                with self.world.watching():
                    after(answer, *args, **options)
            return answer

        return call

    def _acking(self, connector: Any, position: dict[str, Any]) -> None:
        """Checks invariants 1 and 2, C12: only records that every destination has are acked, in order, and once except
        for a repeat after a crash."""
        self.told[connector.connector].append(position)
        for part, token in position.items():
            source, offset = Path(part).stem, int(token["offset"])
            given = self.acked[source]
            if given and offset < max(given) and not self.scenario.forgetful:
                self.found.broken(f"Invariant 2: {source} is acked at {offset} after {max(given)}")
            given.append(offset)
            count = sum(1 for at in self.outside.offsets(source)[1:] if at <= offset)
            if source == LOST and self.scenario.gone is not None:
                # Skipped events are acked as well.
                count = min(count, self.scenario.gone[0])
            self._has_all(source, self.scenario.events[source][:count])
        self.world.call("the source is acked", lambda: None)

    def _settling(self, connector: Any, position: dict[str, Any]) -> None:
        self.told[connector.connector].append(position)

    def _deleting(self, queue: str, id: str) -> None:
        """Checks invariant 1 for a message that is deleted."""
        if self.world.actor is not None:
            with self.world.watching():
                self._has_all(queue, [self.scenario.events[queue][int(id.rpartition("-")[2])]])

    def _has_all(self, source: str, events: Sequence[dict[str, Any]]) -> None:
        """Checks that these events have arrived at every destination that needs them before their source is acked."""
        if self.scenario.stored:
            return
        dead: dict[str, list[tuple[Event, str]]] | None = None
        for destination in self.scenario.destinations:
            has = set(self.outside.arrived(destination, under_way=True))
            for event in events:
                state = self.scenario.at(destination, event)
                if state not in ("delivered", "nacked") or (source, event["n"]) in has:
                    continue
                # Dead letters are files: read only if something is missing.
                dead = self.outside.dead() if dead is None else dead
                if (source, event["n"]) not in self._kept(destination, dead):
                    self.found.broken(f"Invariant 1: {source} is acked, but {destination} has not {event['n']}")

    def _kept(self, destination: str, dead: dict[str, list[tuple[Event, str]]]) -> set[Event]:
        """Returns the events that wait to be sent to a destination again."""
        parked = self.outside.parked(destination) if self.scenario.parks else set()
        early = dead.get(BEFORE_FAN_OUT, ()) if self.scenario.resends else ()
        return parked | {event for event, _ in (*dead.get(destination, ()), *early)}

    def _committing(self, _: Any, source: str, ack: Any, *__: Any, **___: Any) -> None:
        """Checks C12: an ack is committed in the broker only after the source was told."""
        if ack.position not in self.told[source]:
            self.found.broken(f"C12: an ack of {source} is committed before the source was told {ack.position}")

    def _opened(self, *_: Any, **__: Any) -> None:
        """Checks invariants 3 and 7: records that are read and not confirmed are within the budget."""
        s = self.scenario
        names = self._numbers("pipeline", "sealed", "unsealed")
        sealed, unsealed = names
        cursors = [self._numbers(f"destination:{d}", "cursor")[0] for d in s.destinations]
        behind = list(range(min(cursors) + 1, sealed + 1))
        if s.lag is None:
            if unsealed and behind and not s.forgetful:
                self.found.broken(f"Invariant 7: micro-batch {unsealed} is opened while {behind} are not confirmed")
            return
        records = sum(self._numbers(f"micro-batch:{m}", "total")[0] for m in behind)
        data = self.redis.hgetall(f"{{conduit:{PIPELINE}}}:micro-batch:{unsealed}") if unsealed else {}
        for name, text in data.items():
            if name.startswith("slices:"):
                records += sum(piece["records"] or 0 for piece in json.loads(text))
        if records > s.lag and not s.forgetful:
            self.found.broken(f"Invariant 7: {records} records are ahead of the slowest destination, {s.lag} may be")

    def _acquired(self, lease: Any, _: Any, node: str, *__: Any, **___: Any) -> None:
        unsealed = self._numbers("pipeline", "unsealed")[0]
        if unsealed and not self.redis.hexists(f"{{conduit:{PIPELINE}}}:micro-batch:{unsealed}", f"stage:{node}"):
            self._unstaged[lease.token] = unsealed

    def _staging(self, _: Any, node: str, m: int, token: int, *__: Any, **___: Any) -> None:
        """Checks invariant 3: a staged micro-batch is not made again, whatever became of it since."""
        if self._unstaged.get(token) != m and not self.scenario.forgetful:
            self.found.broken(
                f"Invariant 3: {node} makes micro-batch {m} again, which was staged before it had the lease"
            )

    def _sealed(self, *_: Any, **__: Any) -> None:
        """Checks that indexes are consecutive per source partition, over restages too (invariant 3)."""
        if self.scenario.forgetful:
            return
        sealed = self._numbers("pipeline", "sealed")[0]
        for m in range(self._looked + 1, sealed + 1):
            data = self.redis.hgetall(f"{{conduit:{PIPELINE}}}:micro-batch:{m}")
            if data.get("sources", "[]") == "[]":
                # Whoever sealed it died at once, and until this look it was delivered, acked and made slim.
                self._index.clear()
                self._missed = True
            for name, first in data.items():
                if name.startswith("first:sources."):
                    source = name.removeprefix("first:sources.")
                    slices = json.loads(data[f"slices:{source}"])
                    counts = json.loads(data[f"stage:sources.{source}"])["counts"]
                    for piece, at, count in zip(slices, map(int, first.split(",")), counts):
                        self._indexed(m, (source, piece["partition"]), at, count)
            self._looked = m

    def _indexed(self, m: int, partition: tuple[str, str], at: int, count: int) -> None:
        due = self._index.get(partition, None if self._missed else 0)
        if due not in {at, None}:
            self.found.broken(f"Invariant 3: micro-batch {m} numbers {partition[0]} from {at}, {due} was next")
        self._index[partition] = at + count

    def _voting(
        self, _: Any, destination: str, m: int, token: int, first: int, votes: Any, *, shard: int = 0, **__: Any
    ) -> None:
        at, merged = first, self._merged[destination, m]
        for kind, count in votes:
            if kind == "n":
                self._voted[destination, m].update((merged, shard, n) for n in range(at, at + count))
            at += count

    def _storing(self, store: Any, letters: Sequence[Any]) -> None:
        """Checks C6: a dead letter is stored only after its vote; the record that trips the window becomes none."""
        destination = store._folder.rpartition("destination=")[2]
        if destination == "_pipeline":
            destination = ""
            if not self.scenario.window:
                return
        for letter in letters:
            if letter.epoch == 0 and letter.error_class != PARKED and not letter.node.endswith(f"/{UNSENT}"):
                self._stored[destination, letter.micro_batch].add(letter.seq)
                if len(self._stored[destination, letter.micro_batch]) > len(
                    self._voted[destination, letter.micro_batch]
                ):
                    self.found.broken(f"C6: {destination or 'seal'} stores a dead letter before the vote on it")

    def _attempted(self, attempt: Any, _: Any, node: str, *__: Any) -> None:
        """Checks invariant 4: each attempt has a token of its own, newer than those before it."""
        if attempt.token <= self._attempts.get(node, 0) and not self.scenario.forgetful:
            self.found.broken(f"Invariant 4: two attempts at {node} have the token {attempt.token}")
        self._attempts[node] = attempt.token

    def _drained(self, said: Any, drain: Any, *_: Any) -> None:
        """Checks that a holder that gives its lease up because there is nothing left leaves no micro-batch behind; a
        holder that has lost its lease leaves the rest to its successor."""
        name, sealed = drain.destination.id, self._numbers("pipeline", "sealed")[0]
        cursor = self._numbers(f"destination:{name}", "cursor")[0]
        ours = self._numbers(f"lease:{drain.destination.node}", "token")[0] == drain.lease.token
        over = said.again or (self.scenario.lasts and gives_way(said.reason))
        if ours and cursor < sealed and not over and not self.scenario.forgetful:
            self.found.broken(f"{name} gave its lease up at {cursor}, and left micro-batch {sealed} behind")

    def _confirming(
        self, _: Any, destination: str, m: int, token: int, ranges: Any, *__: Any, dead: Sequence[Any] = (), **more: Any
    ) -> None:
        """Checks invariant 8: the dead letter of a nack is stored before the nack is confirmed."""
        if not more.get("epoch"):
            given = ranges if isinstance(ranges, RangeSet) else RangeSet.of(ranges)
            self._given[destination, m] = self._given[destination, m].add(given)
        if dead:
            stored = Counter(event for event, _ in self.outside.dead().get(destination, ()))
            for letter in dead:
                event = self.outside.event(letter.record.origin.connector, bytes(letter.record.position))
                if event is not None and not stored[event]:
                    self.found.broken(
                        f"Invariant 8: {destination} confirms a nack of {event} before its dead letter is stored"
                    )

    def _putting(self, _: Any, folder: Path, name: str, *__: Any) -> None:
        self._puts += 1
        self.outside.written[name] = self._puts

    def _merging(self, _: Any, destination: str, m: int, __: int, confirmed: Any, ___: Any) -> None:
        """Notes what several tasks have confirmed of a micro-batch that one task finishes."""
        self._given[destination, m] = confirmed
        self._merged[destination, m] += 1

    def _by_one(self, destination: str, m: int, total: int) -> bool:
        """Returns whether one task has confirmed all of a micro-batch, or nobody knows."""
        whole = self._given[destination, m].ranges == ((0, total - 1),)
        return whole or (destination, m) in self._passed or self.scenario.forgetful

    def _settled_again(self, _: Any, destination: str, *__: Any, dead: Sequence[Any] = (), **___: Any) -> None:
        """Checks invariant 8 for what was sent again."""
        if dead and not {letter.key for letter in dead} <= self.outside.stored(destination):
            self.found.broken(f"Invariant 8: letters of {destination} are settled before they are stored")

    def _dispatching(self, _: Any, __: int, ___: int, ____: Any, to: Any, again: Sequence[Any]) -> None:
        for destination, letters in {**to, "": again}.items():
            self._settled_again(_, destination, dead=letters)

    def _confirmed(self, _: Any, __: Any, destination: str, m: int, *___: Any, **____: Any) -> None:
        """Checks invariant 10: the cursor moves only over a micro-batch of which every record was confirmed."""
        cursor = self._numbers(f"destination:{destination}", "cursor")[0]
        if cursor < m or self.scenario.forgetful or (destination, m) in self._passed:
            return
        given = self._given.pop((destination, m))
        self._passed.add((destination, m))
        total = self._numbers(f"micro-batch:{m}", "total")[0]
        if total and given.ranges != ((0, total - 1),):
            self.found.broken(f"Invariant 10: {destination} passes micro-batch {m} of {total} records by {given}")

    def _collecting(self, spool: Any, pipeline: str, micro_batch: int) -> None:
        """Checks invariant 6: nobody needs a removed micro-batch any more, and marks in the spool say so too (X7)."""
        from conduit_tasks.spool.checkpoint import Checkpoint

        s = self.scenario
        marks = Checkpoint(spool, pipeline).read()
        for node in [*(Node.destination(d) for d in s.destinations), *(Node.ack(a) for a in s.sources)]:
            if node not in marks or marks[node].number < micro_batch:
                self.found.broken(f"X7: micro-batch {micro_batch} is removed before a mark of {node} is beyond it")
        needed = [d for d in s.destinations if self._numbers(f"destination:{d}", "cursor")[0] < micro_batch]
        needed += [a for a in s.sources if self._numbers(f"ack:{a}", "m")[0] < micro_batch]
        if needed and not s.forgetful:
            self.found.broken(f"Invariant 6: micro-batch {micro_batch} is removed, {', '.join(needed)} need it")

    def _numbers(self, key: str, *names: str) -> list[int]:
        return [int(v or 0) for v in self.redis.hmget(f"{{conduit:{PIPELINE}}}:{key}", *names)]
