"""Background calls beside the work: leases, holds and marks that must be renewed meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.waits import CALL

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease

log = logging.getLogger(__name__)


@contextmanager
def every(name: str, seconds: float, call: Callable[[], bool]) -> Iterator[None]:
    """Calls `call` in a thread named `name` every `seconds` while the block runs, as long as it returns True.

    Leaves once the thread has ended, or after the longest time that a call takes. An exception ends the calls.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds) and call():
            pass

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(CALL)


@contextmanager
def keeping(lease: Lease) -> Iterator[None]:
    """Renews the lease in the background, also after Redis was away. If the lease is lost, the next fenced call notices
    it and changes nothing."""

    def renew() -> bool:
        try:
            lease.renew()
        except BrokerUnavailable as error:
            # The lease is ours until another holder takes it over: expiry alone fences nobody.
            log.warning("the lease of %s is not renewed, trying again: %s", lease.node, error)
        except ConduitError:
            return False
        return True

    with every(f"lease {lease.node}", lease.ttl / 3, renew):
        yield
