"""What goes on beside the work: leases, holds and marks that must be renewed meanwhile."""

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
def beside(name: str, seconds: float, call: Callable[[], bool]) -> Iterator[None]:
    """Calls it in a thread of this name every so many seconds while the block runs, as long as it answers True.

    Leaves once the thread has ended, or after the longest that a call takes. What it raises ends the calls.
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
    """Renews the lease in the background, also after Redis was away. Losing it is seen by the next fenced call, which
    changes nothing."""

    def renew() -> bool:
        try:
            lease.renew()
        except BrokerUnavailable as error:
            # Until somebody took over it is ours: expiry alone fences nobody.
            log.warning("the lease of %s is not renewed, trying again: %s", lease.node, error)
        except ConduitError:
            return False
        return True

    with beside(f"lease {lease.node}", lease.ttl / 3, renew):
        yield
