"""Sequential confirm (SEMANTICS O4): the next message is sent only after the confirmation of the one before.

The sender does not repeat a message unless it is given a `timeout`, which puts the re-send pipe (O1) under it; without
one the route must deliver at least once, in both directions, or a lost message or confirmation stops everything.
"""

from __future__ import annotations

from conduit_tasks.pipes.resend import ResendReceiver, ResendSender


class SequentialSender(ResendSender):
    """Sender with one message on its way; `timeout` None = the route re-sends."""

    def __init__(self, *, timeout: float | None = None, capacity: int = 1024, epoch: int = 0) -> None:
        super().__init__(timeout=timeout, capacity=capacity, epoch=epoch)


class SequentialReceiver(ResendReceiver):
    """Receiver that delivers and confirms every message: the sender keeps the order."""
