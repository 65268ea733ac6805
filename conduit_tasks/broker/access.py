"""Access to the state of one pipeline, which all parts of the broker share: the client, the keys, and the answers of
scripts, turned into errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from conduit_tasks.broker import scripts
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.state import StoredError
from conduit_tasks.errors import Fenced, InvariantBroken, LeaseHeld, PipelineStopped, StateLost
from conduit_tasks.redis_client.connection import Client, memory, reaching
from conduit_tasks.redis_client.portions import PORTION, portions
from conduit_tasks.redis_client.script import Script


class Access:
    """Access to the state of one pipeline. Safe to use from several threads, as the client is."""

    def __init__(self, pipeline: str, redis: Client, *, lease_ttl: float = 15.0, lease_grace: float = 1.0) -> None:
        self.pipeline, self.redis = pipeline, redis
        self.lease_ttl, self.lease_grace = lease_ttl, lease_grace
        self.keys = Keys(pipeline)

    def run(self, script: Script, keys: Mapping[str, str | Sequence[str]], **args: Any) -> list[Any]:
        """Runs a script and returns its answer, without the first word if that is `ok`.

        Raises Fenced, PipelineStopped, LeaseHeld, StateLost, InvariantBroken, BrokerUnavailable.
        """
        kind, *rest = script(self.redis, keys, **args)
        match kind:
            case "ok":
                return rest
            case "fenced":
                holder = f"{rest[1]} holds it" if rest[1] else "nobody holds it now"
                raise Fenced(
                    f"{script.name}: a lease of pipeline {self.pipeline} is lost (newest token {rest[0]}, {holder}). "
                    "Stop: the successor goes on"
                )
            case "stopped":
                raise PipelineStopped(self._stopped(*rest))
            case "held":
                raise LeaseHeld("", rest[0], int(rest[1]))
            case "broken":
                raise InvariantBroken(f"{rest[0]} (pipeline {self.pipeline}, {script.name})")
            case "forgotten":
                raise StateLost(
                    f"{script.name}: Redis has forgotten what was claimed for pipeline {self.pipeline} under a lease "
                    "that it still knows: see that Redis keeps what it is told, then call it again, and it goes on"
                )
            case _:
                return [kind, *rest]

    def read(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Runs several reading commands in one round trip; they are not atomic."""
        with reaching(self.redis):
            batch: Any = self.redis.pipeline(transaction=False)
            for command in commands:
                batch.execute_command(*command)
            return list(batch.execute())

    def hash(self, key: str) -> dict[str, str]:
        """Returns a whole hash; {} if there is none."""
        with reaching(self.redis):
            return dict(self.redis.hgetall(key))  # type: ignore[arg-type]  # typed for both sync and async

    def destination(self, id: str) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the hashes of a destination and of its nack window, between which no word was taken and none was
        forgotten. Without a transaction, whose commands a Redis that is full refuses, reading ones too."""
        while True:
            state = self.hash(self.keys.destination(id))
            window = self.hash(self.keys.window(id))
            if self.field(self.keys.destination(id), "words") == state.get("words"):
                return state, window

    def scanned(self, key: str) -> dict[str, str]:
        """Returns a hash that may be large, read in portions so that no other pipeline waits for it.

        It is no snapshot: for hashes that only a lease holder changes, or whose changes may be seen a moment later.
        """
        found: dict[str, str] = {}
        cursor = 0
        while True:
            with reaching(self.redis):
                answer: Any = self.redis.hscan(key, cursor, count=PORTION)
            cursor, some = answer
            found.update(some)
            if cursor == 0:
                return found

    def field(self, key: str, name: str) -> str | None:
        """Returns one field of a hash; None if it is absent."""
        with reaching(self.redis):
            return self.redis.hget(key, name)  # type: ignore[return-value]  # the same

    def numbers(self, *names: str) -> list[int]:
        """Returns numbers of the pipeline's own hash; 0 for an absent one."""
        with reaching(self.redis):
            values: Any = self.redis.hmget(self.keys.pipeline, list(names))
        return [int(v or 0) for v in values]

    def members(self, key: str) -> list[str]:
        """Returns the members of a set, sorted."""
        with reaching(self.redis):
            return sorted(self.redis.smembers(key))  # type: ignore[arg-type]  # the same

    def now(self) -> float:
        """Returns the time by the server's clock, in seconds since the epoch."""
        with reaching(self.redis):
            seconds, micros = self.redis.time()
        return float(seconds) + float(micros) / 1e6

    def used(self) -> float:
        """Returns the share of its maxmemory that the server uses; 0 if it has no limit."""
        used, limit = memory(self.redis, self.keys.pipeline)
        return used / limit if limit else 0.0

    def since(self, key: str, name: str) -> float | None:
        """Returns the seconds since the time in a field of a hash, by the server's clock; None if there is none."""
        at, (secs, micros) = self.read(("HGET", key, name), ("TIME",))
        if at is None:
            return None
        passed = int(secs) * 1_000_000 + int(micros) - int(at)
        if passed < 0:
            self.not_ahead((key, name, ""))
        return max(0, passed) / 1e6

    def not_ahead(self, *times: tuple[str, str, str]) -> None:
        """Corrects stored times that lie further in the future than they can, as the server's clock went back: they
        count from now on.

        `times`: hash, field of the time, and the field beside it that holds how far ahead the time may lie in
        microseconds; "": not at all.
        """
        for some in portions(times):
            names = [text for _, name, most in some for text in (name, most)]
            self.run(scripts.NOT_AHEAD, {"each": [key for key, _, _ in some]}, names=names)

    def close(self) -> None:
        """Closes the connections."""
        self.redis.close()

    def _stopped(self, status: str, error: str, destination: str = "") -> str:
        """Returns the message for a stopped node. `destination`: key of the stopped destination; the pipeline runs."""
        first = ""
        if error:
            stored = orjson.loads(error)
            first = f" First error: {stored['node']}: {stored['error']}."
        if status == "rebuilding":
            return (
                f"the state of pipeline {self.pipeline} is being rebuilt; if that was cut off, call `conduit broker "
                f"rebuild {self.pipeline} --replace` again"
            )
        what, start = f"pipeline {self.pipeline}", f"conduit start {self.pipeline}"
        if destination:
            id = destination.removeprefix(self.keys.destination(""))
            what, start = f"destination {id} of {what}", f"{start} --destination {id}"
        first_step = "Fix the cause, then" if error or not destination else "Somebody stopped it;"
        return f"{what} is {status or 'not initialised'}.{first} {first_step} `{start}`"


def stored_error(text: str | None, at: str | None) -> StoredError | None:
    """Reads the JSON that `fail` and `vote` store; None if there is none."""
    if not text:
        return None
    data = orjson.loads(text)
    return StoredError(data["node"], data["error"], data["error_class"], data["micro_batch"], seconds(at) or 0.0)


def error_json(node: str, error: str, error_class: str, micro_batch: int | None) -> dict[str, Any]:
    """Returns an error in the form that `stored_error` reads; its time is set by the server."""
    return {"node": node, "error": error, "error_class": error_class, "micro_batch": micro_batch}


def seconds(micros: str | None) -> float | None:
    """Converts a stored time (microseconds) to seconds; None if there is none."""
    return int(micros) / 1e6 if micros else None


def as_hash(found: Any) -> dict[str, str]:
    """Returns a whole hash from the answer to HGETALL within `Access.read`, whose form depends on the protocol."""
    return dict(found) if isinstance(found, Mapping) else dict(zip(found[::2], found[1::2], strict=True))
