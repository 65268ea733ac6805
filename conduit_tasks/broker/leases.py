"""Leases: the right to change a node's state, with fencing tokens that only grow, for a node's holder and its
executors' attempts; attempts without progress are counted (invariant 4).

Fencing guards writes to the broker, never sends: an executor stops sending when its own view of the lease has expired
(`expires_at`), and a successor waits until the lease's expiry and a grace have passed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access
from conduit_tasks.errors import BrokerUnavailable, ConduitError, LeaseHeld, Terminated, Unavailable

HELD = ("owner", "until", "ttl")
"""Fields of a lease hash that `free_in` takes."""
_POLL = 0.2
"""Seconds between two attempts to acquire a lease that is held: its holder may release it early."""


class Lease:
    """A lease that was acquired; use it as a context manager, or `release` it.

    `attempts`: consecutive acquisitions without progress, this one included (1: the last holder made progress or
    released in good order). If the context is left by an error that is not the project's own, the attempt counts as one
    without progress; SIGTERM is no error.
    """

    def __init__(self, access: Access, node: str, token: int, *, attempts: int, ttl: float, expires_at: float) -> None:
        self._access = access
        self.node, self.token, self.attempts, self.ttl = node, token, attempts, ttl
        self._expires_at = expires_at
        self._lock = threading.Lock()

    @property
    def expires_at(self) -> float:
        """Value of `time.monotonic()` until which nobody else can hold the lease, measured from before the call that
        renewed it."""
        return self._expires_at

    def renewed(self, began: float) -> None:
        """Notes that a call that began at `time.monotonic()` = `began` has renewed the lease."""
        with self._lock:
            self._expires_at = max(self._expires_at, began + self.ttl)

    def renew(self) -> None:
        """Renews the lease, whatever the pipeline's status. Raises Fenced if another holder took over."""
        began = time.monotonic()
        keys = {"lease": self._access.keys.lease(self.node), "scopes": ()}
        self._access.run(scripts.RENEW, keys, token=self.token)
        self.renewed(began)

    def release(self, expect_sealed: int | None = None, *, failed: bool = False) -> bool:
        """Gives the lease up, unless a micro-batch beyond `expect_sealed` has been sealed (None: does not matter).

        Returns False, and keeps the lease, in that case: the holder looks again, so that none is left behind.
        """
        answer = self._access.run(
            scripts.RELEASE,
            {"lease": self._access.keys.lease(self.node), "pipeline": self._access.keys.pipeline},
            token=self.token,
            expect=-1 if expect_sealed is None else expect_sealed,
            failed=failed,
        )
        return bool(answer[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Terminated) and error.busy:
            return  # the lease expires by itself, once nobody sends under it any more
        try:
            self.release(failed=error is not None and not isinstance(error, ConduitError | Terminated))
        except BrokerUnavailable:
            # The error being raised says more; the lease expires by itself.
            if error is None:
                raise


class Attempt(Lease):
    """An executor's attempt at the work of the lease's holder, with a token of its own; use it as a context manager.

    Once the context is left, in any way, the attempt sends no more, and the next one need not wait for its expiry.
    """

    def release(self, expect_sealed: int | None = None, *, failed: bool = False) -> bool:
        """Ends the attempt; the driver keeps its lease."""
        keys = {"lease": self._access.keys.lease(self.node)}
        self._access.run(scripts.ATTEMPTED, keys, token=self.token, error="")
        return True


class Leases:
    """Operations on leases."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def acquire(self, node: str, owner: str, *, wait: float = 0.0, ttl: float | None = None) -> Lease:
        """Acquires the lease of `node` (`sources.<id>`, `processors`, `seal`, `destinations.<id>`, `acks.<id>`).

        Waits up to `wait` seconds for its holder. `ttl` must exceed the longest send, as nothing is sent in the last
        `timeout` seconds of a lease; default: the broker's. Raises LeaseHeld.
        """
        ttl = self._access.lease_ttl if ttl is None else ttl
        give_up = time.monotonic() + wait
        nonce = uuid.uuid4().hex
        while True:
            began = time.monotonic()
            try:
                token, attempts = self._ask(node, owner, nonce, ttl)
            except Terminated as asked:
                # The lease may have been granted already: a second call with the same nonce returns it.
                if not asked.busy:
                    with suppress(ConduitError):
                        token, attempts = self._ask(node, owner, nonce, ttl)
                        Lease(self._access, node, token, attempts=attempts, ttl=ttl, expires_at=0.0).release()
                raise
            except LeaseHeld as held:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise LeaseHeld(node, held.owner, held.until) from None
                time.sleep(min(_POLL, left))
                continue
            return Lease(self._access, node, token, attempts=attempts, ttl=ttl, expires_at=began + ttl)

    def _ask(self, node: str, owner: str, nonce: str, ttl: float) -> tuple[int, int]:
        """Returns token and attempts, the same ones again for the same `nonce`. Raises LeaseHeld."""
        grace, lives = int(self._access.lease_grace * 1e6), int(ttl * 1e6)
        keys = {"lease": self._keys.lease(node)}
        token, attempts = self._access.run(scripts.ACQUIRE, keys, owner=owner, nonce=nonce, ttl=lives, grace=grace)
        return int(token), int(attempts)

    def held_for(self, node: str) -> float:
        """Returns the seconds until a held lease would be free, grace included; 0 if it is free. Acquires nothing."""
        lease, (secs, micros) = self._access.read(("HMGET", self._keys.lease(node), *HELD), ("TIME",))
        return free_in(lease, int(secs) + int(micros) / 1e6, self._access.lease_grace)

    def attempt(self, node: str, destination: str, token: int, shard: int | None = None) -> Attempt:
        """Begins an executor's attempt at the work of the driver that holds the lease under `token` (invariant 4), or
        at one shard of it; attempts at different shards go on beside each other.

        Waits while another attempt of the same driver at the same is under way, until that one has ended, or has not
        renewed for as long as the lease lives. Raises Fenced if the driver has lost its lease, PipelineStopped, and
        Unavailable if an attempt under this lease has given up.
        """
        nonce = uuid.uuid4().hex
        keys = {
            "lease": self._keys.lease(node),
            "pipeline": self._keys.pipeline,
            "destination": self._keys.destination(destination),
        }
        while True:
            began = time.monotonic()
            try:
                own, ttl, attempts, error = self._access.run(
                    scripts.ATTEMPT,
                    keys,
                    token=token,
                    shard="" if shard is None else str(shard),
                    nonce=nonce,
                    grace=int(self._access.lease_grace * 1e6),
                )
            except LeaseHeld:
                time.sleep(_POLL)
                continue
            if error:
                raise Unavailable(error)
            ttl_s = int(ttl) / 1e6
            return Attempt(self._access, node, int(own), attempts=int(attempts), ttl=ttl_s, expires_at=began + ttl_s)

    def give_up(self, node: str, token: int, error: str) -> None:
        """Ends the attempt with this token without progress; `error` says why."""
        self._access.run(scripts.ATTEMPTED, {"lease": self._keys.lease(node)}, token=token, error=error)

    def gave_up(self, node: str) -> str:
        """Returns the reason for which an attempt under the present lease gave up; "" if none did."""
        return self._access.field(self._keys.lease(node), "gave_up") or ""

    def attach(self, node: str, token: int) -> Lease:
        """Renews and returns a lease that another process of the same holder acquired (executors send under their
        driver's lease).

        Raises Fenced.
        """
        began = time.monotonic()
        keys = {"lease": self._keys.lease(node), "scopes": ()}
        ttl, _, attempts = self._access.run(scripts.RENEW, keys, token=token)
        ttl_s = int(ttl) / 1e6
        return Lease(self._access, node, token, attempts=int(attempts), ttl=ttl_s, expires_at=began + ttl_s)


def free_in(lease: Sequence[str | None], now: float, grace: float) -> float:
    """Returns the seconds until a lease is free, grace included; 0 if it is. `lease`: its `HELD` fields."""
    owner, until, ttl = lease
    if not owner:
        return 0.0
    left = int(until or 0) / 1e6 - now
    if left > int(ttl or 0) / 1e6:
        # The server's clock went back: only `acquire` can make the lease count from now on, so let it be called.
        return 0.0
    return max(0.0, left + grace)
