"""How old the oldest record is that a destination has not confirmed, and what was told of it."""

from __future__ import annotations

import secrets

from conduit_tasks.broker import scripts
from conduit_tasks.broker.micro_batches import MicroBatches

TELLING = 300.0
"""Seconds after which an alert is told by another run, where the one that was about to did not say that it has."""


class Lateness(MicroBatches):
    """Alerts are remembered here, so that each is told once however many runs see its cause."""

    def waiting_for(self, destination: str) -> float:
        """Seconds since the oldest micro-batch that this destination has not confirmed was planned, sealed or not; 0
        where nothing waits."""
        _, cursor = self.cursors([destination])
        return self.since(self.keys.micro_batch(cursor + 1), "opened_at") or 0.0

    def alert(self, subject: str, late: bool) -> str:
        """Whether it is to be told now that `subject` is late, or no longer: then a nonce for `alerted`, else ""."""
        nonce = secrets.token_hex(8)
        keys, ttl = {"alerts": self.keys.alerts}, int(TELLING * 1e6)
        (yours,) = self.run(scripts.ALERT, keys, subject=subject, late=int(late), nonce=nonce, ttl=ttl)
        return nonce if yours else ""

    def alerted(self, subject: str, late: bool, nonce: str, *, told: bool) -> None:
        """It was told (and is not again), or could not be (and the next run tells it)."""
        keys = {"alerts": self.keys.alerts}
        self.run(scripts.ALERTED, keys, subject=subject, late=int(late), nonce=nonce, told=int(told))
