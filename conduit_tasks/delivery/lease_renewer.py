"""Keeps the lease while a delivery is busy with other things, and says at once when it is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.logs import carried
from conduit_tasks.waits import CALL

log = logging.getLogger(__name__)


class LeaseRenewer:
    """Thread that renews the lease every `interval` seconds.

    A broker that cannot be reached is asked again: no send begins past `send_until` anyway. Any other error (Fenced,
    PipelineStopped) ends the renewing, is kept in `error` and handed to `lost`, which is called in the thread.
    """

    def __init__(
        self, port: DeliveryPort, interval: float, lost: Callable[[BaseException], None] | None = None
    ) -> None:
        self._port, self._interval, self._lost = port, interval, lost
        self._stop, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewer", daemon=True)
        self.error: BaseException | None = None
        self._carry = carried()

    def __enter__(self) -> LeaseRenewer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(CALL)

    def pause(self, seconds: float) -> None:
        """Sleeps, but not past the end of the lease: raises like `check`."""
        self._ended.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raises the error that ended the renewing, if there is one."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        self._carry()
        while not self._stop.wait(self._interval):
            try:
                self._port.renew()
            except BrokerUnavailable as error:
                log.warning("the lease could not be renewed, trying again: %s", error)
            except ConduitError as error:
                self.error = error
                self._ended.set()
                if self._lost is not None:
                    self._lost(error)
                return
