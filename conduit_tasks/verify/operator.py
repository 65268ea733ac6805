"""Actions of the operator (stop, start, fix, change the file), and faults of Redis and the machine: Redis forgets, is
full or an older copy, clocks jump, power fails, a file vanishes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import redis

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import ConfigError, NotStopped
from conduit_tasks.operate.positions import place
from conduit_tasks.settings import settings
from conduit_tasks.topology import Node
from conduit_tasks.verify import deadly
from conduit_tasks.verify.machine import PATIENCE
from conduit_tasks.verify.scenario import LOST
from conduit_tasks.verify.scenario_file import PIPELINE, text_of

if TYPE_CHECKING:
    from conduit_tasks.verify.history import History

JUMP = 3_600.0
"""Seconds that a clock jumps by."""
State = dict[Any, Any]
"""Key -> the answer of Redis' DUMP."""


class Operator:
    """Acts on the pipeline and its Redis from outside. `rolled_back`: sends that Redis may have forgotten."""

    def __init__(self, history: History) -> None:
        self.history, self.world, self.scenario, self.disk = history, history.world, history.scenario, history.disk
        self.client, self.found = history.client, history.found
        self.raw = redis.Redis.from_url(url_of(self.client), socket_timeout=PATIENCE)
        self.broker = Broker(PIPELINE, self.client)
        self.rolled_back = 0
        self.asked = self._forgotten = False
        """Whether a task has failed because a file is gone; whether the source was made to forget it."""
        self._remembered: tuple[float, State, int] = (0.0, {}, 0)
        self._copy: tuple[State, int] = ({}, 0)
        self._mishaps = {
            "the operator stops by force and starts": self._restart,
            "the file is changed, and a process dies": self._change_and_die,
            "the file is changed": self._change,
            "Redis is full": self.fill,
            "a source's file is gone": self._vanish,
            "a copy of Redis is made": self._make_copy,
            "an older copy of Redis is put back": self._put_back,
            "Redis' clock jumps ahead": lambda: self._jump(redis=JUMP),
            "Redis' clock jumps back": lambda: self._jump(redis=-JUMP),
            "Redis' clock jumps back, and a process dies": self._jump_and_die,
            "the machine's clock jumps ahead": lambda: self._jump(machine=JUMP),
            "the machine's clock jumps back": lambda: self._jump(machine=-JUMP),
        }
        self.world.on_power = self._power
        self.world.on_forget = self.forget
        self.world.on_mishap = self._mishap
        if self.scenario.forgetful:
            self.world.on_tick = self._remember

    def close(self) -> None:
        """Closes the connection."""
        self.raw.close()

    def operate(self, random: Random) -> None:
        """Stops the pipeline now and then, or starts it again."""
        status = self.broker.lifecycle.status().status
        if status in ("stopped", "degraded"):
            self.fix()
        elif status == "stopping" and random.random() < 0.5:
            self._start()
        elif random.random() < 0.3:
            force = random.random() < 0.4
            self.world.faults.append(f"{'':8}  the operator stops the pipeline{' by force' if force else ''}")
            self.broker.lifecycle.force_stop() if force else self.broker.lifecycle.stop(60.0)

    def fix(self) -> None:
        """Fixes the cause of a stop, and starts the pipeline."""
        broker = self.broker
        self._rebuild_lost()
        if self.scenario.gone is not None and self.asked:
            self._find()
        if not self.client.exists(broker.keys.pipeline):
            return
        status = broker.lifecycle.status().status
        stopped = any(
            self.client.hget(broker.keys.destination(d), "status") == "stopped" for d in self.scenario.destinations
        )
        if status in ("stopped", "stopping", "degraded") or stopped:
            self.world.faults.append(f"{'':8}  the operator starts the pipeline, which was {status}")
            if self.scenario.strict:
                self._mend_cause()
            self._start()

    def attach(self, node: str, token: int) -> None:
        """Renews a lease, as its driver does. Raises Fenced."""
        self.broker.leases.attach(node, token)

    def _mishap(self, name: str) -> None:
        """Applies a theme's fault to the world."""
        self.world.said(name)
        self._mishaps[name]()

    def _vanish(self) -> None:
        """Removes a file of which something is planned."""
        unsealed = self.broker.micro_batches.unsealed()
        staged = sum(int(n) for n in self.broker.access.hash(self.broker.keys.index(LOST)).values())
        stage = unsealed.stages.get(Node.source(LOST)) if unsealed is not None else None
        sealed = min([staged, *(stage.first_index or ())]) if stage is not None else staged
        self.scenario.gone = (sealed, staged)
        self.scenario.unread = unsealed is not None and Node.source(LOST) in unsealed.missing
        path = settings().home / f"data/{LOST}.jsonl"
        planned = self.broker.positions.planned(LOST).get(f"data/{LOST}.jsonl") or {"offset": 0}
        self.scenario.planned = path.read_bytes()[: planned["offset"]].count(b"\n")
        path.rename(settings().home / "data/gone")

    def _find(self) -> None:
        """Does what the error advises: puts the file's former content back, or forgets it so that the rest goes on."""
        if self.scenario.vanishing == "put back":
            self.world.said("the operator puts the file back")
            (settings().home / "data/gone").rename(settings().home / f"data/{LOST}.jsonl")
            self.scenario.gone, self.scenario.unread = None, False
        elif self.scenario.vanishing == "forget" and not self._forgotten:
            self.broker.lifecycle.force_stop()
            self.scenario.unread = False
            try:
                place(PIPELINE, LOST, {}, [f"data/{LOST}.jsonl"])
            except NotStopped:
                self.world.said("the operator lets end what is in flight")
            except ConfigError:
                self._forgotten = True
            else:
                self.world.said("the operator has the source forget the file")
                self._forgotten = True
            self._start()

    def _change(self) -> None:
        """Changes the file: one task writes where several did, or the other way round. Who has read it goes on."""
        self.scenario.alone, self.scenario.changed = not self.scenario.alone, True
        if not self.scenario.alone:
            # Fewer than before: the bound of repetitions is by the first number.
            self.scenario.tasks = max(2, self.scenario.tasks - 1)
        self.scenario.text = text_of(self.scenario)
        (settings().home / f"include/pipelines/{PIPELINE}.yaml").write_text(self.scenario.text)
        self.history.pipeline = self.history.load()

    def _change_and_die(self) -> None:
        self._change()
        self.world.die("and the file is another one")

    def _restart(self) -> None:
        self.broker.lifecycle.force_stop()
        self._start()

    def _start(self) -> None:
        """Starts the pipeline. Checks C16: after a stop by force, or an error, nothing is left of a micro-batch that
        was not sealed yet: it is requested again, and no process that worked on it goes on."""
        broker, status, before = (
            self.broker,
            self.broker.lifecycle.status().status,
            self.broker.micro_batches.unsealed(),
        )
        held = {node: self._holder(node) for node in (*before.nodes, "seal")} if before is not None else {}
        broker.lifecycle.start()
        if status not in ("stopped", "degraded") or (after := broker.micro_batches.unsealed()) is None:
            return
        for node, holder in held.items():
            if node in after.stages:
                self.found.broken(f"C16: started after a stop, micro-batch {after.number} keeps what {node} had staged")
            if holder[1] and self._holder(node) == holder:
                self.found.broken(f"C16: started after a stop, {holder[1]} goes on with {node} as before")

    def _holder(self, node: str) -> tuple[str, str]:
        """Returns token and owner of the node's lease."""
        lease = self.broker.access.hash(self.broker.keys.lease(node))
        return lease.get("token", ""), lease.get("owner", "")

    def _mend_cause(self) -> None:
        """Fixes the cause of the first error: records on which a processor fails, or that the receiver refuses."""
        error = self.broker.lifecycle.status().error
        if error is not None and Node(error.node).kind == "sources":
            deadly.stubborn = False
        else:
            self.scenario.memory.refused = frozenset()

    def _rebuild_lost(self) -> None:
        """Rebuilds the state if Redis forgot everything, as the runs' error says (X7)."""
        from conduit_tasks.micro_batch import rebuild
        from conduit_tasks.micro_batch.context import open_spool

        if rebuild.holds_state(self.broker):
            return
        spool = open_spool(self.history.pipeline)
        rebuilt = rebuild.from_spool(self.history.pipeline, spool, self.broker)
        if rebuilt.sealed:
            self.world.faults.append(f"{'':8}  the operator rebuilds the state from the spool")
            self.rolled_back += len(self.scenario.memory.taken)
            rebuild.apply(self.broker, rebuilt, replace=False)

    def fill(self) -> None:
        """Makes Redis full: it has reached its maxmemory."""
        self.world.redis_full = True
        self.raw.config_set("maxmemory", 1)

    def make_room(self) -> None:
        """Gives Redis room again."""
        if self.world.redis_full:
            self.world.said("Redis has room again")
            self.world.redis_full = False
            self.raw.config_set("maxmemory", 0)

    def drained(self) -> str:
        """Returns in words what is not delivered and acked of all that was opened; empty if there is nothing."""
        broker = self.broker
        if (unsealed := broker.micro_batches.unsealed()) is not None:
            return f"micro-batch {unsealed.number} is not sealed"
        sealed, *cursors = broker.deliveries.cursors(self.scenario.destinations)
        acked = [int(broker.access.hash(broker.keys.ack(s)).get("m", 0)) for s in self.scenario.sources]
        return "" if min([*cursors, *acked]) == sealed else f"of {sealed} micro-batches {cursors}, {acked} are done"

    def _jump(self, *, redis: float = 0.0, machine: float = 0.0) -> None:
        self.world.redis_ahead += redis
        self.world.machine_ahead += machine

    # -- Redis and the machine ----------------------------------------------------------------------------------

    def _power(self) -> None:
        self.disk.lose()
        if self.scenario.own_disk:
            self.forget()

    def _remember(self) -> None:
        """Remembers the state that Redis has fsynced: at least everything that is a second old."""
        if self.world.now - self._remembered[0] >= 0.7 and (state := self._state()):
            self._remembered = (self.world.now, state, len(self.scenario.memory.taken))

    def forget(self) -> None:
        """Puts Redis back to its last fsync."""
        if self._remembered[0]:
            self._restore(*self._remembered[1:])

    def _jump_and_die(self) -> None:
        self._jump(redis=-JUMP)
        self.world.die("with a lease that ends in an hour")

    def _make_copy(self) -> None:
        self._copy = (self._state(), len(self.scenario.memory.taken))

    def _put_back(self) -> None:
        if self._copy[0]:
            self._restore(*self._copy)

    def _state(self) -> State:
        keys = sorted(self.raw.keys("{conduit:*"))
        return {key: dump for key in keys if (dump := self.raw.dump(key)) is not None}

    def _restore(self, state: State, taken: int) -> None:
        self.world.forgotten += 1
        for key in self.raw.keys("{conduit:*"):
            self.raw.delete(key)
        for key, dump in state.items():
            self.raw.restore(key, 0, dump, replace=True)
        self.raw.script_flush()
        self.rolled_back += len(self.scenario.memory.taken) - taken + self.scenario.batch * 2
        self.world.now += 1.0


def url_of(client: Any) -> str:
    """Returns the address of a client's Redis."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"
