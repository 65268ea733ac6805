"""Outcome of each message that was sent, from its delivery report (invariant 10: never a count), and which need not be
sent again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from conduit_tasks.connectors.kafka.client import error_of, said
from conduit_tasks.connectors.kafka.outgoing import Message
from conduit_tasks.errors import Refused, Unavailable

POLL_EVERY = 1_000
"""Messages between two looks at the reports."""


E = KafkaError
REFUSALS = frozenset(
    {
        *(E.MSG_SIZE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.INVALID_RECORD, E.INVALID_TIMESTAMP),
        *(E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION, E.TOPIC_EXCEPTION),
        *(E.TOPIC_AUTHORIZATION_FAILED, E.POLICY_VIOLATION, E._INVALID_ARG),
    }
)
"""Errors that a retry cannot improve (T6)."""
FOLLOWS = frozenset({E._PURGE_QUEUE, E._PURGE_INFLIGHT, E._FATAL, E._GAPLESS_GUARANTEE})
"""Errors that the other messages get after one has failed."""


class Reports:
    """Reports of some messages, sent by one producer."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._confirmed: list[Any] = [None] * len(messages)
        """Report of each message that was confirmed, None for the others."""
        self._failed: dict[int, tuple[Any, Any]] = {}
        """Error and report of each message that failed; the report is None if the client did not take the message."""
        self._fatal: BaseException | None = None

    def topics(self) -> set[str]:
        """Returns the topics of the messages."""
        return {m.topic for m in self._messages}

    def send(self, producer: Any, patience: float) -> None:
        """Sends all messages and waits for every report; after the first failure nothing more is sent. A producer that
        failed must not be used again. `patience`: seconds to wait for the last reports."""
        produce, report, begun = producer.produce, self._report, 0
        while begun < len(self._messages) and not self._failed:
            try:
                # Reports are taken in between, so that a failure is noticed soon.
                for n in range(begun, min(begun + POLL_EVERY, len(self._messages))):
                    topic, key, value, at, headers = self._messages[n]
                    if at or headers:
                        produce(topic, value, key, on_delivery=partial(report, n), timestamp=at, headers=headers)
                    else:
                        produce(topic, value, key, -1, partial(report, n))
                    begun = n + 1
                self._served(producer, 0.0)
            except BufferError:
                if not self._served(producer, patience):
                    break
            except KafkaException as error:
                self._failed[begun] = error_of(error), None
        if self._waited(producer, patience):
            with suppress(KafkaException):
                producer.purge()
            self._waited(producer, patience)

    def _report(self, n: int, error: Any, message: Any) -> None:
        # No method of these objects is called here: a fatal error is already on its way as an exception.
        if error is None:
            self._confirmed[n] = message
        else:
            self._failed[n] = error, message

    def _served(self, producer: Any, seconds: float) -> int:
        """Takes reports, waiting for the first one, and returns their number. A fatal error arrives as an exception, in
        between."""
        try:
            return int(producer.poll(seconds))
        except (KafkaException, SystemError) as error:
            self._failed_for_good(error)
            return 1

    def _failed_for_good(self, error: Exception) -> None:
        """Keeps the first error; of one that came inside of a report, its cause. The client library never lets go of
        such an error, nor this process, with the traceback, of the producer."""
        cause = error.with_traceback(None).__cause__ or error
        self._fatal = self._fatal or cause.with_traceback(None)

    def _waited(self, producer: Any, patience: float) -> int:
        """Waits for the reports of all messages in flight, and returns the number of those that are missing."""
        give_up = time.monotonic() + patience
        while True:
            try:
                missing = int(producer.flush(max(0.0, give_up - time.monotonic())))
            except (KafkaException, SystemError) as error:
                self._failed_for_good(error)
                if time.monotonic() < give_up:
                    continue
                missing = len(producer)
            return missing

    @property
    def complete(self) -> bool:
        """Whether every message was confirmed."""
        return None not in self._confirmed

    def not_taken(self) -> int | None:
        """Returns the message that the client itself did not take, if nothing else went wrong: none behind it was sent,
        and the producer may be used again."""
        if self._fatal is not None or len(self._failed) != 1:
            return None
        ((n, (error, report)),) = self._failed.items()
        taken = report is not None or None in self._confirmed[:n]
        return None if taken or error.code() not in REFUSALS else n

    def error(self, rows: Sequence[int]) -> Refused | Unavailable:
        """Returns the reason why they are not complete: Refused if messages are at fault, otherwise Unavailable.
        `rows`: of each message, among those of the write."""
        own = [e for _, (e, _) in sorted(self._failed.items()) if e.code() not in FOLLOWS]
        for error in own:
            if error.code() not in REFUSALS:
                return Unavailable(f"kafka: {error.str()}")
        if own:
            at = self.not_taken()
            return Refused(f"kafka: {own[0].str()}", row=None if at is None else rows[at])
        return Unavailable(f"kafka: {said(self._fatal)}" if self._fatal else "kafka: no report came in time")

    def settled(self) -> list[int]:
        """Returns the messages that need not be sent again: confirmed, and behind no message of their partition that
        failed."""
        behind: dict[tuple[str, int], int] = {}
        for n, (_, report) in sorted(self._failed.items(), reverse=True):
            behind[self._messages[n].topic, -1 if report is None else report.partition()] = n
        out = []
        for n, report in enumerate(self._confirmed):
            if report is not None:
                topic = self._messages[n].topic
                if n < min(behind.get((topic, p), n + 1) for p in (report.partition(), -1)):
                    out.append(n)
        return out
