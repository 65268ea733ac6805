"""Trial of calls that must change nothing: the error that each is to raise, and every key of the broker as it was
before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from conduit_tasks.errors import Fenced, PipelineStopped
from conduit_tasks.verify.result import Found
from conduit_tasks.verify.scenario_file import PIPELINE


class Calls:
    """Tries calls on the state of the pipeline. `redis`: a client outside of the world."""

    def __init__(self, found: Found, redis: Any) -> None:
        self.found, self.redis = found, redis
        self._kinds: dict[bytes, bytes] = {}

    def refused(self, what: str, kind: type[Exception], call: Callable[[], Any]) -> None:
        """Notes a call that is not refused with `kind`, or that changes something."""
        before = self._state()
        try:
            call()
        except kind:
            pass
        except Exception as error:  # noqa: BLE001 - reported with its type
            self.found.broken(f"{what}: refused with {type(error).__name__} ({error}), not with {kind.__name__}")
        else:
            self.found.broken(f"{what} is accepted")
        self._same(what, before)

    def idle(self, what: str, call: Callable[[], Any]) -> None:
        """Notes a call that changes something; it may be refused."""
        before = self._state()
        with suppress(PipelineStopped, Fenced):
            call()
        self._same(what, before)

    def _same(self, what: str, before: dict[bytes, Any]) -> None:
        after = self._state()
        changed = sorted(key.decode() for key in {*before, *after} if before.get(key) != after.get(key))
        if changed:
            self.found.broken(f"{what} changes {', '.join(changed)}")

    def _state(self) -> dict[bytes, Any]:
        """Returns the content of every key, except leases and keys that expire."""
        keys = sorted(
            key
            for key in self.redis.keys(f"{{conduit:{PIPELINE}}}:*")
            if not any(part in key for part in (b":lease:", b":run:", b":finished:"))
        )
        new = [key for key in keys if key not in self._kinds]
        self._kinds |= dict(zip(new, self._all("TYPE", new)))
        # DUMP of a large hash gives the same fields in another order now and then.
        hashes = [key for key in keys if self._kinds[key] == b"hash"]
        rest = [key for key in keys if self._kinds[key] != b"hash"]
        return {**dict(zip(hashes, self._all("HGETALL", hashes))), **dict(zip(rest, self._all("DUMP", rest)))}

    def _all(self, command: str, keys: list[bytes]) -> list[Any]:
        batch = self.redis.pipeline(transaction=False)
        for key in keys:
            batch.execute_command(command, key)
        return list(batch.execute()) if keys else []

    @contextmanager
    def being(self, status: str) -> Iterator[None]:
        """Gives the pipeline this status while the block runs."""
        with self.numbered("status", status):
            yield

    @contextmanager
    def numbered(self, name: str, value: Any, of: str = "pipeline") -> Iterator[None]:
        """Sets a field of a hash while the block runs, then restores it."""
        key = f"{{conduit:{PIPELINE}}}:{of}"
        held = self.redis.hget(key, name)
        self.redis.hset(key, name, value)
        try:
            yield
        finally:
            if held is None:
                self.redis.hdel(key, name)
            else:
                self.redis.hset(key, name, held)
