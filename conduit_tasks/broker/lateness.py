"""Lateness of a destination: the age of the oldest record that it has not confirmed, and the alerts sent about it."""

from __future__ import annotations

import secrets

from conduit_tasks.broker import scripts
from conduit_tasks.broker.micro_batches import MicroBatches

TELLING = 300.0
"""Seconds after which another run sends an alert, if the run that claimed it has not said that it was sent."""


class Lateness(MicroBatches):
    """Waiting times and alerts. Alerts are remembered, so that each is sent once, however many runs see its cause."""

    def waiting_for(self, destination: str) -> float:
        """Returns the seconds since the oldest micro-batch that this destination has not confirmed was planned, sealed
        or not; 0 if nothing waits."""
        _, cursor = self.cursors([destination])
        return self.since(self.keys.micro_batch(cursor + 1), "opened_at") or 0.0

    def alert(self, subject: str, late: bool) -> str:
        """Claims the alert that `subject` is late (`late` False: no longer late). Returns a nonce for `alerted` if the
        caller is to send it now, else ""."""
        nonce = secrets.token_hex(8)
        keys, ttl = {"alerts": self.keys.alerts}, int(TELLING * 1e6)
        (yours,) = self.run(scripts.ALERT, keys, subject=subject, late=int(late), nonce=nonce, ttl=ttl)
        return nonce if yours else ""

    def alerted(self, subject: str, late: bool, nonce: str, *, told: bool) -> None:
        """Notes that a claimed alert was sent (it is not sent again), or could not be (the next run sends it)."""
        keys = {"alerts": self.keys.alerts}
        self.run(scripts.ALERTED, keys, subject=subject, late=int(late), nonce=nonce, told=int(told))
