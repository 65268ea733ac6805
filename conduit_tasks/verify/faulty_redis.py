"""Redis in a `World`: each command is a point, scripts read the world's clock, and what blocks waits on it."""

from __future__ import annotations

from typing import Any

import redis

from conduit_tasks.verify.faulty_files import Patch
from conduit_tasks.verify.machine import Orders
from conduit_tasks.verify.scripts import scripts
from conduit_tasks.verify.wire import answers, execute, run, unless_error
from conduit_tasks.verify.world import World

CLOCK = "conduit-verify:clock"
"""Redis hash with the world's seconds and microseconds, which scripts read instead of TIME."""

_READS = frozenset(
    [
        "GET",
        "HGET",
        "HGETALL",
        "HMGET",
        "SMEMBERS",
        "EXISTS",
        "TYPE",
        "TIME",
        "SCAN",
        "KEYS",
        "HLEN",
        "SCARD",
        "HSCAN",
        "XREVRANGE",
    ]
)

_HARMLESS = frozenset({"INFO", "CONFIG", "PING", "CLIENT"})


def commands(world: World, orders: Orders) -> list[Patch]:
    """Returns the patches of Redis' client and scripts."""
    from redis.client import Pipeline

    names: dict[str, str] = {}
    rings: set[str] = set()
    patches: list[Patch] = []
    for module, name, script in scripts():
        patches.append((module, name, moved := _on_our_clock(script)))
        names[moved.sha] = moved.name
        if "K.bell" in script.source:
            rings.add(moved.name)

    def on_our_clock(client: Any, *args: Any) -> Any:
        """Sets the time that the script reads, and runs it, in one round trip."""
        seconds, micros = world.redis_time
        words: list[tuple[Any, ...]] = [("HSET", CLOCK, "s", str(seconds), "us", str(micros)), args]
        if world.redis_full:
            # The hash of the clock is verify's own, and needs room.
            words.insert(0, ("CONFIG", "SET", "maxmemory", "0"))
            words.insert(-1, ("CONFIG", "SET", "maxmemory", "1"))
        found = answers(client, [(each, {}) for each in words])
        assert found is not None, "verify's connection to Redis is closed"
        return unless_error(found[-1])

    def waited(self: Any, *args: Any, **options: Any) -> Any:
        """Runs a blocking command on the world's clock."""
        at = args.index(b"BLOCK") if b"BLOCK" in args else args.index("BLOCK")
        words, until = (*args[:at], *args[at + 2 :]), world.now + int(args[at + 1]) / 1000
        while not (found := world.call("XREAD", lambda: execute(self, *words, **options), changes=False)):
            if world.now >= until:
                return found
            world.blocks(until - world.now)
        return found

    def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        word = str(args[0]).upper()
        script = word in ("EVALSHA", "EVAL")

        def operation() -> Any:
            return on_our_clock(self, *args) if script else execute(self, *args, **options)

        if world.actor is None or word in _HARMLESS:
            world.check()
            # An observer beside a process has the time of that process's last script.
            return execute(self, *args, **options) if world.beside else operation()
        if word == "TIME":
            return world.redis_time
        if word == "XREAD":
            return waited(self, *args, **options)
        what = names.get(str(args[1]), "a script") if script else " ".join(map(str, args[:2]))
        # The client repeats a command if its answer was lost (invariant 5).
        answer = world.call(what, operation, changes=script or word not in _READS, repeatable=script)
        if what in rings:
            world.rings()
        return orders.fields(answer)

    def execute_pipeline(self: Any, *args: Any, **options: Any) -> Any:
        if world.actor is None:
            world.check()
            return run(self, *args, **options)
        commands = [command[0] for command in self.command_stack]
        changes = any(str(command[0]).upper() not in _READS for command in commands)
        answers = world.call("commands", lambda: run(self, *args, **options), changes=changes)
        now = world.redis_time
        return [now if command[0] == "TIME" else orders.fields(answer) for command, answer in zip(commands, answers)]

    return [*patches, (redis.Redis, "execute_command", execute_command), (Pipeline, "execute", execute_pipeline)]


def _on_our_clock(script: Any) -> Any:
    """Returns the script, changed to read the world's clock."""
    import hashlib
    from dataclasses import replace

    source = script.source.replace("redis.call('TIME')", f"redis.call('HMGET', '{CLOCK}', 's', 'us')")
    return replace(script, source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
