"""Keeps received messages hidden from other consumers for as long as their worker lives."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from conduit_tasks.connectors import aws

log = logging.getLogger(__name__)

MESSAGES = 10
"""In one request: SQS's own limit."""


class Hidden:
    """The messages of one worker: each is hidden for `seconds` from now again, when a third of them has passed."""

    def __init__(self, client: Any, url: str, seconds: float) -> None:
        self._client, self._url, self._seconds = client, url, seconds
        self._held: deque[tuple[float, list[str]]] = deque()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqs visibility", daemon=True)
        self._thread.start()

    def add(self, receipts: list[str]) -> None:
        """They were received just now."""
        with self._lock:
            self._held.append((time.monotonic(), receipts))

    def give_back(self) -> None:
        """Visible again at once, as far as SQS can be reached; otherwise when their time is up."""
        try:
            while self._held:
                self._change(self._held.popleft()[1], 0)
        except aws.errors() as error:
            log.warning("messages of %s stay hidden for %s s: %s", self._url, self._seconds, error)

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(min(1.0, self._seconds / 10)):
            try:
                while (due := self._due()) and not self._done.is_set():
                    began = time.monotonic()
                    self._change(due, round(self._seconds))
                    with self._lock:
                        self._held.append((began, due))
            except aws.errors() as error:
                log.warning("messages of %s may become visible while they are worked on: %s", self._url, error)

    def _due(self) -> list[str]:
        with self._lock:
            if self._held and time.monotonic() - self._held[0][0] > self._seconds / 3:
                return self._held.popleft()[1]
            return []

    def _change(self, receipts: Sequence[str], seconds: int) -> None:
        for at in range(0, len(receipts), MESSAGES):
            entries = [
                {"Id": str(n), "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
                for n, receipt in enumerate(receipts[at : at + MESSAGES])
            ]
            # One that is visible already fails alone; it comes again.
            self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
