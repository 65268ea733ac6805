"""Re-send with several unconfirmed messages (SEMANTICS O2): each is tracked by its number and sent again on its own."""

from __future__ import annotations

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipes.resend import ResendReceiver, ResendSender


class ResendMultiSender(ResendSender):
    """ResendSender with up to `max_unconfirmed` messages on their way; they may arrive in any order."""

    def __init__(
        self, *, max_unconfirmed: int = 64, timeout: float | None = 10.0, capacity: int = 1024, epoch: int = 0
    ) -> None:
        super().__init__(timeout=timeout, capacity=capacity, epoch=epoch)
        if max_unconfirmed < 1:
            raise ConfigError(f"max-unconfirmed: {max_unconfirmed} lets nothing be sent; give 1 or more")
        self.window = max_unconfirmed


class ResendMultiReceiver(ResendReceiver):
    """Receiver that delivers and confirms every message."""
