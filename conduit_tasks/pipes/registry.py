"""The pipes by name, each with its row of SEMANTICS "O" in words (`conduit explain`) and in values."""

from __future__ import annotations

from conduit_tasks.pipes.base import Pipe
from conduit_tasks.pipes.continuous import ContinuousReceiver, ContinuousRelaxedReceiver, ContinuousSender
from conduit_tasks.pipes.monotonic import MonotonicReceiver, MonotonicRelaxedReceiver, MonotonicSender
from conduit_tasks.pipes.resend import ResendReceiver, ResendSender
from conduit_tasks.pipes.resend_multi import ResendMultiReceiver, ResendMultiSender
from conduit_tasks.pipes.sequential import SequentialReceiver, SequentialSender
from conduit_tasks.pipes.stream import StreamReceiver, StreamSender

RETRY = 5
"""Number of times that a pipe that re-sends sends again within a run."""
UNCONFIRMED = 64
"""Number of messages on their way at once in a pipe that allows several."""
_RESENDING = "a path back for confirmations"
_INDEX_STATE = "the receiver's index stored with what it delivered, where a restart is to go unnoticed"

PIPES: dict[str, Pipe] = {
    pipe.name: pipe
    for pipe in (
        Pipe(
            name="resend",
            number="O1",
            delivery="at least once, one message on its way at a time; duplicates are possible",
            tolerates="failures of the route and of the receiver",
            not_tolerated="loss of the sender's state: what it had not seen confirmed is gone",
            needs=_RESENDING,
            order="first",
            loss=False,
            duplicates="any",
            sender=ResendSender,
            receiver=ResendReceiver,
            defaults={"retry": RETRY},
        ),
        Pipe(
            name="resend-multi",
            number="O2",
            delivery="at least once, several messages on their way, in no order; duplicates are possible",
            tolerates="failures of the route and of the receiver",
            not_tolerated="loss of the sender's state: what it had not seen confirmed is gone",
            needs=_RESENDING,
            order="none",
            loss=False,
            duplicates="any",
            sender=ResendMultiSender,
            receiver=ResendMultiReceiver,
            defaults={"retry": RETRY, "max_unconfirmed": UNCONFIRMED, "order_by": "none"},
        ),
        Pipe(
            name="stream",
            number="O3",
            delivery="at least once, in the order of storage; duplicates are possible",
            tolerates="errors of the routes to the storage and to the index store, of the receiver and of the engine",
            not_tolerated="loss of the sender before the storage (the spool) confirmed; loss of what it holds",
            needs="paths back from the storage; an index store, if a receiver is not to begin again from the start",
            order="none",
            loss=False,
            duplicates="any",
            sender=StreamSender,
            receiver=StreamReceiver,
        ),
        Pipe(
            name="sequential",
            number="O4",
            delivery="continuous order: a message goes out only when the one before is confirmed",
            tolerates="what the re-sending route below it tolerates; a copy which that brings late comes late",
            not_tolerated="an error of the sender or of the receiver",
            needs="a route below it that re-sends, in both directions",
            order="first",
            loss=False,
            duplicates="any",
            sender=SequentialSender,
            receiver=SequentialReceiver,
        ),
        Pipe(
            name="monotonic",
            number="O5",
            delivery="numbers only go up: no duplicates, no reordering; what is lost or overtaken leaves a gap",
            tolerates="errors of the route, at the price of gaps",
            not_tolerated="loss of the sender's or the receiver's index",
            needs=_INDEX_STATE,
            order="monotonic",
            loss=True,
            duplicates="none",
            sender=MonotonicSender,
            receiver=MonotonicReceiver,
        ),
        Pipe(
            name="monotonic-relaxed",
            number="O5r",
            delivery="numbers never go down: no reordering, the current one may repeat, gaps are possible",
            tolerates="errors of the route, at the price of gaps",
            not_tolerated="loss of the sender's or the receiver's index",
            needs=_INDEX_STATE,
            order="monotonic",
            loss=True,
            duplicates="current",
            sender=MonotonicSender,
            receiver=MonotonicRelaxedReceiver,
        ),
        Pipe(
            name="continuous",
            number="O6",
            delivery="absolute order: every message once, none before its predecessor; the queue is bounded",
            tolerates="what the re-sending route below it tolerates",
            not_tolerated="loss of the sender's or the receiver's state",
            needs="a route below it that re-sends; " + _INDEX_STATE,
            order="continuous",
            loss=False,
            duplicates="none",
            sender=ContinuousSender,
            receiver=ContinuousReceiver,
        ),
        Pipe(
            name="continuous-relaxed",
            number="O6r",
            delivery="continuous order: no message before its predecessor, none lost, the current one may repeat",
            tolerates="what the re-sending route below it tolerates",
            not_tolerated="loss of the sender's or the receiver's state",
            needs="a route below it that re-sends; " + _INDEX_STATE,
            order="continuous",
            loss=False,
            duplicates="current",
            sender=ContinuousSender,
            receiver=ContinuousRelaxedReceiver,
        ),
    )
}
