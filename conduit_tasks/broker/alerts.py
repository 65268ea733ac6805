"""Breaches of alerts' rules that were told: each, and its end, is claimed by one run and told once, however many runs
see it."""

from __future__ import annotations

import secrets

from conduit_tasks.broker import scripts
from conduit_tasks.broker.access import Access

TELLING = 300.0
"""Seconds after which another run sends an alert, if the run that claimed it has not said that it was sent."""


class Alerts:
    """Alerts that are remembered, and claims of the runs that are sending one."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def claim(self, subject: str, late: bool) -> str:
        """Claims the alert that `subject` is late (`late` False: no longer late). Returns a nonce for `settle` if the
        caller is to send it now, else ""."""
        nonce = secrets.token_hex(8)
        keys, ttl = {"alerts": self._keys.alerts}, int(TELLING * 1e6)
        (yours,) = self._access.run(scripts.ALERT, keys, subject=subject, late=int(late), nonce=nonce, ttl=ttl)
        return nonce if yours else ""

    def settle(self, subject: str, late: bool, nonce: str, *, told: bool) -> None:
        """Notes that a claimed alert was sent (it is not sent again), or could not be (the next run sends it)."""
        keys = {"alerts": self._keys.alerts}
        self._access.run(scripts.ALERTED, keys, subject=subject, late=int(late), nonce=nonce, told=int(told))
