"""Delivery disciplines as pure state machines (SEMANTICS O1–O6r): they differ in numbering, repetition, waiting and
loss."""

from conduit_tasks.pipes.base import AT_ONCE, Confirmation, Message, Pipe, Reaction, Receiver, Sender, State
from conduit_tasks.pipes.registry import PIPES

__all__ = ["AT_ONCE", "PIPES", "Confirmation", "Message", "Pipe", "Reaction", "Receiver", "Sender", "State"]
